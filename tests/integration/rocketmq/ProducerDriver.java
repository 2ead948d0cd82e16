import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * RocketMQ's own client: sends what the commands say, and tells what its consumers received. Its arguments are the
 * address of a name server, and the access key and the secret key that it signs with, if it signs.
 *
 * "send" and "batch" take "messages", each with "body", "tag", "keys" and "delayLevel" of its own;
 * "transactions" takes bodies, each with its outcome; "consume" starts a consumer; "received" waits for its messages.
 */
public final class ProducerDriver {
    /** The client skips the heartbeat with its new subscription if another is on its way; the next is 30 s later. */
    private static final long WAIT_MS = 150_000;
    /** A busy machine may take longer than the client's own three seconds for a handshake. */
    private static final int PATIENCE_MS = 60_000;

    private final String address;
    private final Map<String, List<Map<String, Object>>> received = new ConcurrentHashMap<>();
    private final List<DefaultMQPushConsumer> consumers = new ArrayList<>();
    private final DefaultMQProducer producer;
    private final RPCHook hook;
    private TransactionMQProducer transactions;

    private ProducerDriver(String address, RPCHook hook) throws Exception {
        this.address = address;
        this.hook = hook;
        producer = new DefaultMQProducer("java-producers", hook);
        producer.setNamesrvAddr(address);
        producer.setSendMsgTimeout(PATIENCE_MS);
        producer.setMqClientApiTimeout(PATIENCE_MS);
        producer.start();
    }

    public static void main(String[] arguments) throws Exception {
        CommandLoop loop = new CommandLoop();
        RPCHook hook = arguments.length < 3
            ? null : new AclClientRPCHook(new SessionCredentials(arguments[1], arguments[2]));
        ProducerDriver driver = new ProducerDriver(arguments[0], hook);
        loop.say(Map.of("started", true));
        loop.run(driver::handle);
        driver.close();
        System.exit(0);
    }

    private Map<String, Object> handle(String name, JSONObject arguments) throws Exception {
        switch (name) {
            case "send":
                return Map.of("results", send(messages(arguments)));
            case "batch":
                return Map.of("results", List.of(shown(producer.send(messages(arguments)))));
            case "transactions":
                return Map.of("results", sendInTransactions(arguments.getString("topic"), arguments.getJSONObject("outcomes")));
            case "consume":
                return consume(arguments);
            case "received":
                return Map.of("messages", await(arguments.getString("group"), arguments.getIntValue("count")));
            case "query":
                return query(arguments.getString("topic"), arguments.getString("key"), arguments.getString("id"));
            default:
                throw new IllegalArgumentException(name);
        }
    }

    private void close() {
        consumers.forEach(DefaultMQPushConsumer::shutdown);
        producer.shutdown();
        if (transactions != null) {
            transactions.shutdown();
        }
    }

    private List<Message> messages(JSONObject arguments) {
        List<Message> messages = new ArrayList<>();
        for (JSONObject each : arguments.getJSONArray("messages").toJavaList(JSONObject.class)) {
            byte[] body = each.getString("body").getBytes(StandardCharsets.UTF_8);
            Message message = new Message(arguments.getString("topic"), each.getString("tag"), each.getString("keys"), body);
            if (each.containsKey("delayLevel")) {
                message.setDelayTimeLevel(each.getIntValue("delayLevel"));
            }
            messages.add(message);
        }
        return messages;
    }

    private List<Map<String, Object>> send(List<Message> messages) throws Exception {
        List<Map<String, Object>> results = new ArrayList<>();
        for (Message message : messages) {
            results.add(shown(producer.send(message)));
        }
        return results;
    }

    private List<Map<String, Object>> sendInTransactions(String topic, JSONObject outcomes) throws Exception {
        transactions = new TransactionMQProducer("java-transactions", hook);
        transactions.setNamesrvAddr(address);
        transactions.setSendMsgTimeout(PATIENCE_MS);
        transactions.setMqClientApiTimeout(PATIENCE_MS);
        transactions.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object outcome) {
                return ((String) outcome).startsWith("check") ? LocalTransactionState.UNKNOW : state((String) outcome);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return state(outcomes.getString(text(message)).substring("check ".length()));
            }
        });
        transactions.start();
        List<Map<String, Object>> results = new ArrayList<>();
        for (String body : outcomes.keySet()) {
            Message message = new Message(topic, body.getBytes(StandardCharsets.UTF_8));
            results.add(shown(transactions.sendMessageInTransaction(message, outcomes.getString(body))));
        }
        return results;
    }

    private static LocalTransactionState state(String outcome) {
        return outcome.equals("commit") ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
    }

    private Map<String, Object> consume(JSONObject arguments) throws Exception {
        String group = arguments.getString("group");
        List<Map<String, Object>> seen = Collections.synchronizedList(new ArrayList<>());
        received.put(group, seen);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, hook);
        consumer.setNamesrvAddr(address);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(arguments.getString("topic"), arguments.getString("tags"));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> seen.add(shown(message)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        consumers.add(consumer);
        return Map.of();
    }

    /** Returns what a group received, after it has received so many messages or did not within the time. */
    private List<Map<String, Object>> await(String group, int count) throws InterruptedException {
        List<Map<String, Object>> seen = received.get(group);
        long deadline = System.currentTimeMillis() + WAIT_MS;
        while (seen.size() < count && System.currentTimeMillis() < deadline) {
            Thread.sleep(20);
        }
        synchronized (seen) {
            return new ArrayList<>(seen);
        }
    }

    private Map<String, Object> query(String topic, String key, String id) throws Exception {
        QueryResult byKey = producer.queryMessage(topic, key, 10, 0, Long.MAX_VALUE);
        List<Map<String, Object>> found = new ArrayList<>();
        byKey.getMessageList().forEach(message -> found.add(shown(message)));
        return Map.of("by_key", found, "by_id", shown(producer.viewMessage(topic, id)));
    }

    private static Map<String, Object> shown(SendResult result) {
        Map<String, Object> shown = new LinkedHashMap<>();
        shown.put("status", result.getSendStatus().name());
        shown.put("id", result.getMsgId());
        shown.put("offset_id", result.getOffsetMsgId());
        shown.put("queue", result.getMessageQueue().getQueueId());
        shown.put("queue_offset", result.getQueueOffset());
        return shown;
    }

    private static Map<String, Object> shown(MessageExt message) {
        Map<String, Object> shown = new LinkedHashMap<>();
        shown.put("body", text(message));
        shown.put("id", message.getMsgId());
        shown.put("queue", message.getQueueId());
        shown.put("waited_ms", message.getStoreTimestamp() - message.getBornTimestamp());
        return shown;
    }

    private static String text(MessageExt message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }
}
