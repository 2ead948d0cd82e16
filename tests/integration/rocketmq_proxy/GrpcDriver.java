import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Runs cases of the gRPC client of RocketMQ 5 through a Proxy. Arguments: the Proxy's address, then names of cases.
 *
 * Prints a line for each case: CASE, its name, passed or failed, and the reason. The topics grpc-normal, grpc-fifo,
 * grpc-delay and grpc-transaction exist, each with its message type, and the groups g-fifo (ordered) and g-dead (one
 * retry).
 */
public class GrpcDriver {
    private static final int SECONDS = 60;
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static ClientConfiguration configuration;

    private interface Case {
        void run() throws Exception;
    }

    private static final Map<String, Case> CASES = Map.of(
        "normal", GrpcDriver::normal,
        "again", GrpcDriver::again,
        "renewed", GrpcDriver::renewed,
        "push", GrpcDriver::push,
        "fifo", GrpcDriver::fifo,
        "delay", GrpcDriver::delay,
        "transaction", GrpcDriver::transaction,
        "filter", GrpcDriver::filter,
        "dead", GrpcDriver::dead);

    public static void main(String[] arguments) throws Exception {
        configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(10)).build();
        for (int at = 1; at < arguments.length; at++) {
            String name = arguments[at];
            try {
                CASES.get(name).run();
                System.out.println("CASE " + name + " passed");
            } catch (Throwable failure) {
                System.out.println("CASE " + name + " failed " + failure.toString().replace('\n', ' '));
            }
        }
        System.out.flush();
        System.exit(0);
    }

    private static void normal() throws Exception {
        try (Producer producer = producer("grpc-normal")) {
            String key = send(producer, "grpc-normal", "normal", null);
            try (SimpleConsumer consumer = simple("g-normal", "grpc-normal", "normal")) {
                MessageView found = receive(consumer, key, 30);
                check(text(found).equals("normal"), "body " + text(found));
                check(found.getTag().orElse("").equals("normal"), "tag " + found.getTag());
                check(found.getDeliveryAttempt() == 1, "attempt " + found.getDeliveryAttempt());
                consumer.ack(found);
            }
        }
    }

    private static void again() throws Exception {
        try (Producer producer = producer("grpc-normal")) {
            String key = send(producer, "grpc-normal", "again", null);
            try (SimpleConsumer consumer = simple("g-again", "grpc-normal", "again")) {
                receive(consumer, key, 10);
                MessageView second = receive(consumer, key, 10);
                check(second.getDeliveryAttempt() == 2, "attempt " + second.getDeliveryAttempt());
                consumer.ack(second);
            }
        }
    }

    private static void renewed() throws Exception {
        try (Producer producer = producer("grpc-normal")) {
            String key = send(producer, "grpc-normal", "renewed", null);
            try (SimpleConsumer consumer = simple("g-renewed", "grpc-normal", "renewed")) {
                MessageView found = receive(consumer, key, 10);
                consumer.changeInvisibleDuration(found, Duration.ofSeconds(40));
                long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(14);
                while (System.nanoTime() < until) {
                    check(consumer.receive(4, Duration.ofSeconds(10)).isEmpty(), "delivered within its new time");
                }
                consumer.ack(found);
            }
        }
    }

    private static void push() throws Exception {
        Set<String> done = ConcurrentHashMap.newKeySet();
        Set<String> failed = ConcurrentHashMap.newKeySet();
        AtomicInteger attempts = new AtomicInteger();
        MessageListener listener = message -> {
            String key = message.getKeys().iterator().next();
            attempts.incrementAndGet();
            if (text(message).equals("push 3") && failed.add(key)) {
                return ConsumeResult.FAILURE;
            }
            done.add(key);
            return ConsumeResult.SUCCESS;
        };
        Set<String> sent = new HashSet<>();
        try (Producer producer = producer("grpc-normal");
            PushConsumer consumer = pushing("g-push", "grpc-normal", "push", listener)) {
            for (int number = 0; number < 20; number++) {
                sent.add(send(producer, "grpc-normal", "push " + number, null, "push"));
            }
            waitFor(() -> done.containsAll(sent), () -> done.size() + " of " + sent.size() + " consumed");
            check(attempts.get() >= 21, "no second attempt");
        }
    }

    private static void fifo() throws Exception {
        Map<String, List<Integer>> seen = new ConcurrentHashMap<>();
        Set<String> failed = ConcurrentHashMap.newKeySet();
        AtomicInteger count = new AtomicInteger();
        MessageListener listener = message -> {
            String[] parts = text(message).split(" ");
            if (parts[1].equals("4") && failed.add(parts[0])) {
                return ConsumeResult.FAILURE;
            }
            seen.computeIfAbsent(parts[0], name -> Collections.synchronizedList(new ArrayList<>()))
                .add(Integer.valueOf(parts[1]));
            count.incrementAndGet();
            return ConsumeResult.SUCCESS;
        };
        try (Producer producer = producer("grpc-fifo");
            PushConsumer consumer = pushing("g-fifo", "grpc-fifo", "*", listener)) {
            for (int number = 0; number < 10; number++) {
                for (String group : List.of("a", "b")) {
                    Message message = builder("grpc-fifo", group + " " + number).setMessageGroup(group).build();
                    producer.send(message);
                }
            }
            waitFor(() -> count.get() >= 20, () -> count.get() + " of 20 consumed");
        }
        for (List<Integer> numbers : seen.values()) {
            List<Integer> sorted = new ArrayList<>(numbers);
            Collections.sort(sorted);
            check(numbers.equals(sorted) && numbers.size() == 10, "order " + numbers);
        }
    }

    private static void delay() throws Exception {
        try (Producer producer = producer("grpc-delay");
            SimpleConsumer consumer = simple("g-delay", "grpc-delay", "*")) {
            long due = System.currentTimeMillis() + 4_000;
            String key = "delay-" + System.nanoTime();
            producer.send(builder("grpc-delay", "late").setKeys(key).setDeliveryTimestamp(due).build());
            MessageView found = receive(consumer, key, 30);
            check(System.currentTimeMillis() >= due - 1_000, "delivered early");
            consumer.ack(found);
        }
    }

    private static void transaction() throws Exception {
        CountDownLatch checked = new CountDownLatch(1);
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics("grpc-transaction").setTransactionChecker(message -> {
                checked.countDown();
                return TransactionResolution.COMMIT;
            }).build();
        try (producer; SimpleConsumer consumer = simple("g-transaction", "grpc-transaction", "*")) {
            for (String outcome : List.of("committed", "rolled back", "asked")) {
                Transaction transaction = producer.beginTransaction();
                Message message = builder("grpc-transaction", outcome).setKeys("t-" + outcome.charAt(0)).build();
                producer.send(message, transaction);
                if (outcome.equals("committed")) {
                    transaction.commit();
                } else if (outcome.equals("rolled back")) {
                    transaction.rollback();
                }
            }
            Set<String> found = new HashSet<>();
            waitFor(() -> {
                for (MessageView each : consumer.receive(16, Duration.ofSeconds(20))) {
                    found.add(text(each));
                    consumer.ack(each);
                }
                return found.size() >= 2;
            }, () -> "found " + found);
            check(found.equals(Set.of("committed", "asked")), "found " + found);
            check(checked.getCount() == 0, "no check");
        }
    }

    private static void filter() throws Exception {
        try (Producer producer = producer("grpc-normal")) {
            for (int price = 1; price <= 4; price++) {
                producer.send(builder("grpc-normal", "price " + price).setTag("filter")
                    .addProperty("price", Integer.toString(price)).build());
            }
            FilterExpression condition = new FilterExpression("price > 2", FilterExpressionType.SQL92);
            Set<String> found = new HashSet<>();
            try (SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration)
                .setConsumerGroup("g-filter").setAwaitDuration(Duration.ofSeconds(5))
                .setSubscriptionExpressions(Map.of("grpc-normal", condition)).build()) {
                waitFor(() -> {
                    for (MessageView each : consumer.receive(16, Duration.ofSeconds(20))) {
                        found.add(text(each));
                        consumer.ack(each);
                    }
                    return found.size() >= 2;
                }, () -> "found " + found);
            }
            check(found.equals(Set.of("price 3", "price 4")), "found " + found);
        }
    }

    /** A message that always fails; the caller looks for it among the dead letters. */
    private static void dead() throws Exception {
        AtomicInteger attempts = new AtomicInteger();
        MessageListener listener = message -> {
            attempts.incrementAndGet();
            return ConsumeResult.FAILURE;
        };
        try (Producer producer = producer("grpc-normal");
            PushConsumer consumer = pushing("g-dead", "grpc-normal", "dead", listener)) {
            send(producer, "grpc-normal", "dead", null);
            waitFor(() -> attempts.get() >= 2, () -> attempts.get() + " attempts");
            TimeUnit.SECONDS.sleep(8);
            check(attempts.get() == 2, attempts.get() + " attempts");
        }
    }

    // ---- parts of cases ----

    private interface Condition {
        boolean holds() throws Exception;
    }

    private interface Reason {
        String text();
    }

    private static void waitFor(Condition condition, Reason reason) throws Exception {
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS);
        while (!condition.holds()) {
            check(System.nanoTime() < until, reason.text());
            TimeUnit.MILLISECONDS.sleep(20);
        }
    }

    private static void check(boolean holds, String reason) {
        if (!holds) {
            throw new AssertionError(reason);
        }
    }

    private static Producer producer(String topic) throws Exception {
        return PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build();
    }

    private static SimpleConsumer simple(String group, String topic, String tag) throws Exception {
        return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Map.of(topic, new FilterExpression(tag, FilterExpressionType.TAG))).build();
    }

    private static PushConsumer pushing(String group, String topic, String tag, MessageListener listener)
        throws Exception {
        return PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setSubscriptionExpressions(Map.of(topic, new FilterExpression(tag, FilterExpressionType.TAG)))
            .setMessageListener(listener).build();
    }

    private static MessageView receive(SimpleConsumer consumer, String key, int invisibleSeconds) throws Exception {
        List<MessageView> kept = new ArrayList<>();
        waitFor(() -> {
            for (MessageView each : consumer.receive(16, Duration.ofSeconds(invisibleSeconds))) {
                if (each.getKeys().contains(key)) {
                    kept.add(each);
                } else {
                    consumer.ack(each);
                }
            }
            return !kept.isEmpty();
        }, () -> "not received: " + key);
        return kept.get(0);
    }

    private static MessageBuilder builder(String topic, String text) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(text.getBytes(StandardCharsets.UTF_8));
    }

    private static String send(Producer producer, String topic, String text, String group) throws Exception {
        return send(producer, topic, text, group, text);
    }

    private static String send(Producer producer, String topic, String text, String group, String tag)
        throws Exception {
        String key = text.replace(' ', '-') + "-" + System.nanoTime();
        MessageBuilder message = builder(topic, text).setKeys(key).setTag(tag);
        producer.send((group == null ? message : message.setMessageGroup(group)).build());
        return key;
    }

    private static String text(MessageView message) {
        ByteBuffer body = message.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.duplicate().get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }
}
