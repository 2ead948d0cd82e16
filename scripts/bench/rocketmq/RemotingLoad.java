import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * Load through RocketMQ's client: NAME_SERVER COMMAND TOPIC COUNT WARM_UP [SIZE], and one line of JSON as the result.
 *
 * single: one send at a time. window: SIZE sends in flight. batch: SIZE messages a send.
 * consume: a push consumer takes COUNT messages that are there; the time counts from the first one on.
 */
final class RemotingLoad {
    private static final int BODY_BYTES = 100;
    private static final int QUEUES = 4;
    private static final long ROUTE_WAIT_NANOS = 30_000_000_000L;
    private static final long ROUTE_POLL_NANOS = 200_000_000L;

    private final String nameServer;
    private final String topic;
    private final AtomicReference<Throwable> failure = new AtomicReference<>();

    private RemotingLoad(String nameServer, String topic) {
        this.nameServer = nameServer;
        this.topic = topic;
    }

    public static void main(String[] arguments) throws Exception {
        RemotingLoad load = new RemotingLoad(arguments[0], arguments[2]);
        int count = Integer.parseInt(arguments[3]);
        int warmUp = Integer.parseInt(arguments[4]);
        int size = arguments.length > 5 ? Integer.parseInt(arguments[5]) : 0;
        try {
            load.run(arguments[1], count, warmUp, size);
            System.exit(0); // the client's threads would keep the process alive
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    private void run(String command, int count, int warmUp, int size) throws Exception {
        switch (command) {
            case "single" -> single(count, warmUp);
            case "window" -> window(count, warmUp, size);
            case "batch" -> batch(count, warmUp, size);
            case "consume" -> consume(count);
            default -> throw new IllegalArgumentException(command);
        }
    }

    private void single(int count, int warmUp) throws Exception {
        List<Message> messages = messages(warmUp + count);
        long[] taken = new long[messages.size()];
        DefaultMQProducer producer = producer();
        for (int number = 0; number < taken.length; number++) {
            long began = System.nanoTime();
            check(producer.send(messages.get(number)));
            taken[number] = System.nanoTime() - began;
        }
        long[] counted = Arrays.copyOfRange(taken, warmUp, taken.length);
        double seconds = Arrays.stream(counted).sum() / 1e9;
        Arrays.sort(counted);
        System.out.printf(
                "{\"p50\": %.9f, \"p99\": %.9f, \"rate\": %.1f}%n",
                counted[(count - 1) / 2] / 1e9, counted[(int) Math.ceil(count * 0.99) - 1] / 1e9, count / seconds);
    }

    private void window(int count, int warmUp, int size) throws Exception {
        DefaultMQProducer producer = producer();
        sendAll(producer, messages(warmUp), size);
        List<Message> messages = messages(count);
        long began = System.nanoTime();
        sendAll(producer, messages, size);
        printRate(count, began);
    }

    private void sendAll(DefaultMQProducer producer, List<Message> messages, int size) throws Exception {
        Semaphore free = new Semaphore(size);
        for (Message message : messages) {
            free.acquire();
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    free.release();
                }

                @Override
                public void onException(Throwable error) {
                    failure.compareAndSet(null, error);
                    free.release();
                }
            });
        }
        free.acquire(size);
        checkFailure();
    }

    private void batch(int count, int warmUp, int size) throws Exception {
        DefaultMQProducer producer = producer();
        List<Message> messages = messages(warmUp + count);
        long began = 0;
        for (int start = 0; start < messages.size(); start += size) {
            if (start >= warmUp && began == 0) {
                began = System.nanoTime();
                count = messages.size() - start;
            }
            check(producer.send(messages.subList(start, Math.min(start + size, messages.size()))));
        }
        printRate(count, began);
    }

    private void consume(int count) throws Exception {
        AtomicLong first = new AtomicLong();
        AtomicLong taken = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench");
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            first.compareAndSet(0, System.nanoTime());
            if (taken.addAndGet(messages.size()) >= count) {
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        done.await();
        printRate(count, first.get());
    }

    private DefaultMQProducer producer() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench");
        producer.setNamesrvAddr(nameServer);
        producer.start();
        long deadline = System.nanoTime() + ROUTE_WAIT_NANOS;
        while (true) { // a broker of RocketMQ listens before its name server knows it
            try {
                producer.createTopic("TBW102", topic, QUEUES, Map.of());
                producer.fetchPublishMessageQueues(topic);
                return producer;
            } catch (MQClientException error) {
                if (System.nanoTime() > deadline) {
                    throw error;
                }
                LockSupport.parkNanos(ROUTE_POLL_NANOS);
            }
        }
    }

    private List<Message> messages(int count) {
        Random random = new Random(count);
        List<Message> made = new ArrayList<>(count);
        for (int number = 0; number < count; number++) {
            byte[] body = new byte[BODY_BYTES];
            random.nextBytes(body);
            made.add(new Message(topic, "", String.format("order-%08d", number), body));
        }
        return made;
    }

    private static void check(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("a send ended with " + result.getSendStatus());
        }
    }

    private void checkFailure() {
        if (failure.get() != null) {
            throw new IllegalStateException("a send failed", failure.get());
        }
    }

    private static void printRate(int count, long began) {
        System.out.printf("{\"rate\": %.1f}%n", count / ((System.nanoTime() - began) / 1e9));
    }
}
