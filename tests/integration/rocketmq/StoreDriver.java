import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.Reader;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.remoting.protocol.filter.FilterAPI;
import org.apache.rocketmq.store.DefaultMessageFilter;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.MessageFilter;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Opens a store with RocketMQ's own DefaultMessageStore, reports what it found, and then serves commands.
 *
 * Argument: a properties file with RocketMQ's settings (storePathRootDir, mappedFileSizeCommitLog ...).
 */
public final class StoreDriver {
    private static final int BATCH = 32;

    private final DefaultMessageStore store;

    private StoreDriver(MessageStoreConfig config) throws Exception {
        store = new DefaultMessageStore(config, new BrokerStatsManager("test", false),
            (topic, queueId, logicOffset, tagsCode, storeTime, bitMap, properties) -> { },
            new BrokerConfig(), new ConcurrentHashMap<>());
        if (!store.load()) {
            throw new IllegalStateException("DefaultMessageStore.load() said no; see the log");
        }
        store.start();
    }

    public static void main(String[] arguments) throws Exception {
        CommandLoop loop = new CommandLoop();
        Properties properties = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(arguments[0]), StandardCharsets.UTF_8)) {
            properties.load(reader);
        }
        MessageStoreConfig config = new MessageStoreConfig();
        MixAll.properties2Object(properties, config);
        try {
            StoreDriver driver = new StoreDriver(config);
            loop.say(Map.of("min", driver.store.getMinPhyOffset(), "max", driver.store.getMaxPhyOffset()));
            loop.run(driver::handle);
        } catch (Exception error) {
            loop.sayError(error);
        }
        Runtime.getRuntime().halt(0);
    }

    private Map<String, Object> handle(String name, JSONObject arguments) throws Exception {
        switch (name) {
            case "dispatched":
                return Map.of("behind", store.dispatchBehindBytes());
            case "read":
                return read(Path.of(arguments.getString("to")));
            case "count_tag":
                return Map.of("count", countTag(arguments.getString("topic"), arguments.getString("tag")));
            case "find":
                return find(Path.of(arguments.getString("keys")), Path.of(arguments.getString("to")));
            case "append":
                return append(arguments);
            case "close":
                store.shutdown();
                return Map.of("behind", store.dispatchBehindBytes());
            default:
                throw new IllegalArgumentException(name);
        }
    }

    /** Write every message of every queue, in the queues' order, to a file; return each queue's ends. */
    private Map<String, Object> read(Path to) throws Exception {
        List<Map<String, Object>> queues = new ArrayList<>();
        List<MessageExt> messages = new ArrayList<>();
        for (Map.Entry<String, ? extends Map<Integer, ConsumeQueueInterface>> topic : store.getConsumeQueueTable().entrySet()) {
            for (int queueId : topic.getValue().keySet()) {
                Map<String, Object> queue = new LinkedHashMap<>();
                queue.put("topic", topic.getKey());
                queue.put("queue", queueId);
                queue.put("min", store.getMinOffsetInQueue(topic.getKey(), queueId));
                queue.put("max", store.getMaxOffsetInQueue(topic.getKey(), queueId));
                queues.add(queue);
                pull(topic.getKey(), queueId, null, messages);
            }
        }
        Shown.writeLines(to, messages, Shown::message);
        return Map.of("queues", queues, "messages", messages.size());
    }

    /** Pull a queue from its first offset to its end, as a consumer does. */
    private void pull(String topic, int queueId, MessageFilter filter, List<MessageExt> messages) {
        long offset = store.getMinOffsetInQueue(topic, queueId);
        while (true) {
            GetMessageResult result = store.getMessage("test", topic, queueId, offset, BATCH, filter);
            if (result.getStatus() != GetMessageStatus.FOUND && result.getNextBeginOffset() <= offset) {
                return;
            }
            for (ByteBuffer buffer : result.getMessageBufferList()) {
                messages.add(MessageDecoder.decode(buffer.slice(), true, true));
            }
            offset = result.getNextBeginOffset();
            result.release();
        }
    }

    private int countTag(String topic, String tag) throws Exception {
        MessageFilter filter = new DefaultMessageFilter(FilterAPI.buildSubscriptionData(topic, tag));
        List<MessageExt> messages = new ArrayList<>();
        for (int queueId : store.getConsumeQueueTable().get(topic).keySet()) {
            pull(topic, queueId, filter, messages);
        }
        return messages.size();
    }

    /** Write the physical offsets that the index gives for each [topic, key] of a file, one line each. */
    private Map<String, Object> find(Path keys, Path to) throws Exception {
        List<List<Long>> found = new ArrayList<>();
        for (String line : Files.readAllLines(keys, StandardCharsets.UTF_8)) {
            List<String> key = JSON.parseArray(line, String.class);
            QueryMessageResult result = store.queryMessage(key.get(0), key.get(1), 10_000, 0, Long.MAX_VALUE);
            List<Long> offsets = new ArrayList<>();
            for (ByteBuffer buffer : result.getMessageBufferList()) {
                offsets.add(MessageDecoder.decode(buffer.slice(), true, false).getCommitLogOffset());
            }
            result.release();
            found.add(offsets);
        }
        Shown.writeLines(to, found, offsets -> offsets);
        return Map.of("keys", found.size());
    }

    /** Put one message as a broker does; it is acknowledged after the flush that the settings require. */
    private Map<String, Object> append(JSONObject arguments) throws Exception {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(arguments.getString("topic"));
        message.setQueueId(arguments.getIntValue("queue"));
        message.setBody(arguments.getString("body").getBytes(StandardCharsets.UTF_8));
        JSONObject properties = arguments.getJSONObject("properties");
        for (String each : properties.keySet()) {
            MessageAccessor.putProperty(message, each, properties.getString(each));
        }
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(properties.getString(MessageConst.PROPERTY_TAGS)));
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(new InetSocketAddress("127.0.0.1", 5000));
        message.setStoreHost(new InetSocketAddress("127.0.0.1", 10911));
        PutMessageResult result = store.putMessage(message);
        if (!result.isOk()) {
            throw new IllegalStateException(result.toString());
        }
        return Shown.message(message(result.getAppendMessageResult().getWroteOffset()));
    }

    private MessageExt message(long physicalOffset) {
        return store.lookMessageByOffset(physicalOffset);
    }
}
