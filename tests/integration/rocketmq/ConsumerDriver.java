import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/**
 * RocketMQ's own producer and consumers, each with a name, against the name server at the address that is the first
 * argument. A push consumer keeps what it got until "got" asks for it.
 */
final class ConsumerDriver {
    /** A push consumer and the messages that it got. "fail" times each message is sent back. */
    private static final class Push {
        final DefaultMQPushConsumer consumer;
        final List<Map<String, Object>> got = new ArrayList<>();

        Push(DefaultMQPushConsumer consumer) {
            this.consumer = consumer;
        }

        synchronized void take(List<MessageExt> messages) {
            for (MessageExt message : messages) {
                got.add(shown(message));
            }
        }

        synchronized List<Map<String, Object>> seen() {
            return new ArrayList<>(got);
        }
    }

    private final String nameServer;
    private final Map<String, Push> push = new ConcurrentHashMap<>();
    private final Map<String, DefaultLitePullConsumer> lite = new ConcurrentHashMap<>();
    private DefaultMQProducer producer;

    private ConsumerDriver(String nameServer) {
        this.nameServer = nameServer;
    }

    public static void main(String[] arguments) throws Exception {
        ConsumerDriver driver = new ConsumerDriver(arguments[0]);
        CommandLoop loop = new CommandLoop();
        loop.say(Map.of("ready", true));
        loop.run(driver::handle);
        System.exit(0);
    }

    private static Map<String, Object> shown(MessageExt message) {
        Map<String, Object> row = new HashMap<>();
        row.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        row.put("queue", message.getQueueId());
        row.put("offset", message.getQueueOffset());
        row.put("topic", message.getTopic());
        row.put("times", message.getReconsumeTimes());
        row.put("tags", message.getTags() == null ? "" : message.getTags());
        return row;
    }

    private Map<String, Object> handle(String name, JSONObject arguments) throws Exception {
        switch (name) {
            case "send":
                return send(arguments);
            case "push":
                return startPush(arguments);
            case "got":
                return Map.of("got", push.get(arguments.getString("name")).seen());
            case "queues":
                return queues(arguments.getString("name"));
            case "stop":
                push.remove(arguments.getString("name")).consumer.shutdown();
                return Map.of();
            case "lite":
                return startLite(arguments);
            case "poll":
                return poll(arguments);
            case "seek":
                return seek(arguments);
            case "commit":
                lite.get(arguments.getString("name")).commitSync();
                return Map.of();
            default:
                throw new IllegalArgumentException(name);
        }
    }

    /** Send "count" messages with the bodies "first", "first" + 1 …, to the queues in turn or to "queue". */
    private Map<String, Object> send(JSONObject arguments) throws Exception {
        if (producer == null) {
            producer = new DefaultMQProducer("driver-producers");
            producer.setNamesrvAddr(nameServer);
            producer.setSendMsgTimeout(60_000);
            producer.start();
        }
        int first = arguments.getIntValue("first");
        for (int number = first; number < first + arguments.getIntValue("count"); number++) {
            byte[] body = Integer.toString(number).getBytes(StandardCharsets.UTF_8);
            Message message = new Message(arguments.getString("topic"), number % 2 == 0 ? "even" : "odd", body);
            message.putUserProperty("number", Integer.toString(number));
            Integer queue = arguments.getInteger("queue");
            SendResult result = queue == null
                ? producer.send(message)
                : producer.send(message, (queues, sent, wanted) -> queues.get((Integer) wanted), queue);
            if (result.getSendStatus() != SendStatus.SEND_OK) {
                throw new IllegalStateException(result.toString());
            }
        }
        return Map.of();
    }

    private Map<String, Object> startPush(JSONObject arguments) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments.getString("group"));
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(arguments.getString("name"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (arguments.getBooleanValue("broadcasting")) {
            consumer.setMessageModel(MessageModel.BROADCASTING);
        }
        if (arguments.containsKey("maxTimes")) {
            consumer.setMaxReconsumeTimes(arguments.getIntValue("maxTimes"));
        }
        String sql = arguments.getString("sql");
        String tags = arguments.containsKey("tags") ? arguments.getString("tags") : "*";
        consumer.subscribe(
            arguments.getString("topic"), sql == null ? MessageSelector.byTag(tags) : MessageSelector.bySql(sql));
        Push started = new Push(consumer);
        int fail = arguments.getIntValue("fail");
        if (arguments.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                started.take(messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                started.take(messages);
                context.setDelayLevelWhenNextConsume(1);
                return messages.get(0).getReconsumeTimes() < fail
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        push.put(arguments.getString("name"), started);
        consumer.start();
        return Map.of("client", consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId());
    }

    /** Return the numbers of the queues that a push consumer processes now, without those of the retry topic. */
    private Map<String, Object> queues(String name) {
        JSONArray found = new JSONArray();
        for (MessageQueue queue : push.get(name).consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl()
            .getProcessQueueTable().keySet()) {
            if (!queue.getTopic().startsWith("%RETRY%")) {
                found.add(queue.getQueueId());
            }
        }
        return Map.of("queues", found);
    }

    private Map<String, Object> startLite(JSONObject arguments) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(arguments.getString("group"));
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(arguments.getString("name"));
        consumer.setAutoCommit(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.start();
        consumer.assign(consumer.fetchMessageQueues(arguments.getString("topic")));
        lite.put(arguments.getString("name"), consumer);
        return Map.of();
    }

    private Map<String, Object> poll(JSONObject arguments) {
        List<Map<String, Object>> got = new ArrayList<>();
        for (MessageExt message : lite.get(arguments.getString("name")).poll(1_000)) {
            got.add(shown(message));
        }
        return Map.of("got", got);
    }

    private Map<String, Object> seek(JSONObject arguments) throws Exception {
        DefaultLitePullConsumer consumer = lite.get(arguments.getString("name"));
        for (MessageQueue queue : consumer.fetchMessageQueues(arguments.getString("topic"))) {
            if (queue.getQueueId() == arguments.getIntValue("queue")) {
                consumer.seek(queue, arguments.getLongValue("offset"));
            }
        }
        return Map.of();
    }
}
