import com.alibaba.fastjson.JSONObject;
import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.auth.config.AuthConfig;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * A whole RocketMQ on loopback: name server and broker on ports that the system chooses, and RocketMQ's own clients.
 *
 * Argument: the same as StoreDriver's.
 */
@SuppressWarnings("deprecation")  // DefaultMQPullConsumer is the only client that just reads a queue from an offset
public final class BrokerDriver {
    private static final int BATCH = 32;
    private static final long REGISTER_SECONDS = 60;
    private static final long REGISTER_PAUSE_MILLIS = 200;

    private final BrokerController broker;
    private final DefaultMQProducer producer = new DefaultMQProducer("test_producer");
    private final DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("test_consumer");

    private BrokerDriver(Properties properties) throws Exception {
        MessageStoreConfig storeConfig = new MessageStoreConfig();
        MixAll.properties2Object(properties, storeConfig);
        NamesrvConfig namesConfig = new NamesrvConfig();
        namesConfig.setKvConfigPath(storeConfig.getStorePathRootDir() + "/../kvConfig.json");
        NamesrvController names = new NamesrvController(namesConfig, onFreePort());
        require(names.initialize(), "the name server did not initialize");
        names.start();
        String address = "127.0.0.1:" + names.getNettyServerConfig().getListenPort();

        BrokerConfig config = new BrokerConfig();
        MixAll.properties2Object(properties, config);
        config.setNamesrvAddr(address);
        config.setBrokerName("broker");
        config.setBrokerId(MixAll.MASTER_ID);
        config.setBrokerIP1("127.0.0.1");
        config.setBrokerIP2("127.0.0.1");
        broker = new BrokerController(config, onFreePort(), new NettyClientConfig(), storeConfig, new AuthConfig());
        require(broker.initialize(), "the broker did not initialize; see the log");
        broker.start();
        registerTopics(names);

        producer.setNamesrvAddr(address);
        producer.setSendMsgTimeout(60_000);
        producer.start();
        consumer.setNamesrvAddr(address);
        consumer.start();
    }

    /** On a slow machine the broker's registration at its start fails, and it tries again only much later. */
    private void registerTopics(NamesrvController names) throws InterruptedException {
        Set<String> topics = broker.getTopicConfigManager().getTopicConfigTable().keySet();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(REGISTER_SECONDS);
        while (!names.getRouteInfoManager().getAllTopicList().getTopicList().containsAll(topics)) {
            require(System.nanoTime() < deadline, "the name server knows no routes of the broker's topics; see the log");
            broker.registerBrokerAll(true, false, true);
            Thread.sleep(REGISTER_PAUSE_MILLIS);
        }
    }

    private static NettyServerConfig onFreePort() {
        NettyServerConfig config = new NettyServerConfig();
        config.setBindAddress("127.0.0.1");
        config.setListenPort(0);
        return config;
    }

    private static void require(boolean condition, String otherwise) {
        if (!condition) {
            throw new IllegalStateException(otherwise);
        }
    }

    public static void main(String[] arguments) throws Exception {
        CommandLoop loop = new CommandLoop();
        System.setProperty("tls.server.mode", "disabled");  // RocketMQ generates no key pair
        System.setProperty(RemotingCommand.REMOTING_VERSION_KEY, Integer.toString(MQVersion.CURRENT_VERSION));
        Properties properties = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(arguments[0]), StandardCharsets.UTF_8)) {
            properties.load(reader);
        }
        try {
            BrokerDriver driver = new BrokerDriver(properties);
            loop.say(Map.of("address", driver.broker.getBrokerAddr()));
            loop.run(driver::handle);
        } catch (Exception error) {
            loop.sayError(error);
        }
        Runtime.getRuntime().halt(0);
    }

    private Map<String, Object> handle(String name, JSONObject arguments) throws Exception {
        switch (name) {
            case "read":
                return read(arguments);
            case "find":
                return find(arguments.getString("topic"), arguments.getString("key"));
            case "view":
                return Shown.message(consumer.viewMessage(arguments.getString("topic"), arguments.getString("id")));
            case "committed":
                return Map.of("offset", broker.getConsumerOffsetManager().queryOffset(
                    arguments.getString("group"), arguments.getString("topic"), arguments.getIntValue("queue")));
            case "commit":
                broker.getConsumerOffsetManager().commitOffset("test", arguments.getString("group"),
                    arguments.getString("topic"), arguments.getIntValue("queue"), arguments.getLongValue("offset"));
                return Map.of();
            case "send":
                return send(arguments);
            case "send_back":
                return sendBack(arguments);
            case "close":
                broker.shutdown();  // everything outside the store ends with the process
                return Map.of();
            default:
                throw new IllegalArgumentException(name);
        }
    }

    /** Pull a whole topic over the network, from the queues that the name server lists. */
    private Map<String, Object> read(JSONObject arguments) throws Exception {
        List<MessageExt> messages = new ArrayList<>();
        TreeSet<MessageQueue> queues =
            new TreeSet<>(consumer.fetchSubscribeMessageQueues(arguments.getString("topic")));
        for (MessageQueue queue : queues) {
            long offset = consumer.minOffset(queue);
            long end = consumer.maxOffset(queue);
            while (offset < end) {
                PullResult pulled = consumer.pull(queue, arguments.getString("tags"), offset, BATCH);
                if (pulled.getPullStatus() == PullStatus.FOUND) {
                    messages.addAll(pulled.getMsgFoundList());
                }
                require(pulled.getNextBeginOffset() > offset, "no way on in " + queue + ": " + pulled);
                offset = pulled.getNextBeginOffset();
            }
        }
        Shown.writeLines(Path.of(arguments.getString("to")), messages, Shown::message);
        return Map.of("queues", queues.size(), "messages", messages.size());
    }

    private Map<String, Object> find(String topic, String key) throws Exception {
        List<Map<String, Object>> found = new ArrayList<>();
        for (MessageExt message : consumer.queryMessage(topic, key, 64, 0, Long.MAX_VALUE).getMessageList()) {
            found.add(Shown.message(message));
        }
        return Map.of("found", found);
    }

    /** Send a message back, as a consumer does if it could not handle it. */
    private Map<String, Object> sendBack(JSONObject arguments) throws Exception {
        MessageExt message = consumer.viewMessage(arguments.getString("topic"), arguments.getString("id"));
        consumer.sendMessageBack(message, arguments.getIntValue("delay_level"), "broker", arguments.getString("group"));
        return Map.of();
    }

    private Map<String, Object> send(JSONObject arguments) throws Exception {
        Message message = new Message(arguments.getString("topic"), arguments.getString("tags"),
            arguments.getString("keys"), arguments.getString("body").getBytes(StandardCharsets.UTF_8));
        if (arguments.containsKey("delay_level")) {
            message.setDelayTimeLevel(arguments.getIntValue("delay_level"));
        }
        if (arguments.containsKey("deliver_ms")) {
            message.setDeliverTimeMs(arguments.getLongValue("deliver_ms"));
        }
        SendResult result = producer.send(message);
        return Map.of("status", result.getSendStatus().name(), "unique_key", result.getMsgId(),
            "queue", result.getMessageQueue().getQueueId(), "queue_offset", result.getQueueOffset());
    }
}
