package org.apache.rocketmq.test.base;

import static org.mockito.Mockito.mock;

import java.util.Map;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.out.BrokerOuterAPI;
import org.apache.rocketmq.broker.subscription.SubscriptionGroupManager;
import org.apache.rocketmq.broker.topic.TopicConfigManager;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Takes the place of the broker that the tests would start in their own process: the broker of the system properties.
 *
 * <p>The tests ask a {@code BrokerController} for its address, and some for offsets, topics and groups. This one asks the
 * broker for them through RocketMQ's admin client, so an assertion on them is one on the broker. Changes of its
 * configuration object have no effect on the broker.
 */
final class ExternalBroker {
    static final String NAME_SERVER = System.getProperty("suite.nameServer");
    static final String CLUSTER = System.getProperty("suite.cluster");
    static final String NAME = System.getProperty("suite.broker");
    static final String ADDRESS = System.getProperty("suite.address");
    private static final long TIMEOUT_MS = 5000;

    private static DefaultMQAdminExt admin;

    private ExternalBroker() {
    }

    static BrokerController controller() {
        BrokerConfig config = new BrokerConfig();
        config.setBrokerName(NAME);
        config.setBrokerClusterName(CLUSTER);
        SubscriptionGroupManager groups = groups();
        TopicConfigManager topics = topics();
        DefaultMessageStore store = store();
        ConsumerOffsetManager offsets = offsets();
        BrokerOuterAPI nameServers = mock(BrokerOuterAPI.class);
        return mock(BrokerController.class, call -> {
            switch (call.getMethod().getName()) {
                case "getBrokerAddr":
                    return ADDRESS;
                case "getBrokerConfig":
                    return config;
                case "getBrokerOuterAPI":
                    return nameServers;
                case "getSubscriptionGroupManager":
                    return groups;
                case "getTopicConfigManager":
                    return topics;
                case "getMessageStore":
                    return store;
                case "getConsumerOffsetManager":
                    return offsets;
                default:
                    throw elsewhere(call.getMethod());
            }
        });
    }

    private static synchronized DefaultMQAdminExt admin() throws Exception {
        if (admin == null) {
            admin = new DefaultMQAdminExt(TIMEOUT_MS);
            admin.setNamesrvAddr(NAME_SERVER);
            admin.setInstanceName("external-broker");
            admin.start();
        }
        return admin;
    }

    private static SubscriptionGroupManager groups() {
        return mock(SubscriptionGroupManager.class, call -> {
            switch (call.getMethod().getName()) {
                case "findSubscriptionGroupConfig":
                    return group(call.getArgument(0));
                case "updateSubscriptionGroupConfig":
                    admin().createAndUpdateSubscriptionGroupConfig(ADDRESS, (SubscriptionGroupConfig) call.getArgument(0));
                    return null;
                default:
                    throw elsewhere(call.getMethod());
            }
        });
    }

    /** Returns a group's configuration, or the default that a broker gives to a group that it did not know. */
    private static SubscriptionGroupConfig group(String name) throws Exception {
        SubscriptionGroupConfig known = admin().getAllSubscriptionGroup(ADDRESS, TIMEOUT_MS).getSubscriptionGroupTable().get(name);
        if (known != null) {
            return known;
        }
        SubscriptionGroupConfig created = new SubscriptionGroupConfig();
        created.setGroupName(name);
        return created;
    }

    private static TopicConfigManager topics() {
        return mock(TopicConfigManager.class, call -> {
            if (call.getMethod().getName().equals("getTopicConfigTable")) {
                return admin().getAllTopicConfig(ADDRESS, TIMEOUT_MS).getTopicConfigTable();
            }
            throw elsewhere(call.getMethod());
        });
    }

    private static DefaultMessageStore store() {
        return mock(DefaultMessageStore.class, call -> {
            switch (call.getMethod().getName()) {
                case "getMaxOffsetInQueue":
                    return admin().maxOffset(queue(call.getArgument(0), call.getArgument(1)));
                case "getMinOffsetInQueue":
                    return admin().minOffset(queue(call.getArgument(0), call.getArgument(1)));
                case "dispatchBehindBytes":
                    Map<String, String> runtime = admin().fetchBrokerRuntimeStats(ADDRESS).getTable();
                    return Long.parseLong(runtime.get("dispatchBehindBytes"));
                default:
                    throw elsewhere(call.getMethod());
            }
        });
    }

    private static ConsumerOffsetManager offsets() {
        return mock(ConsumerOffsetManager.class, call -> {
            OffsetWrapper offsets = null;
            if (call.getMethod().getName().startsWith("query")) {
                String group = call.getArgument(0);
                String topic = call.getArgument(1);
                int queue = call.getArgument(2);
                offsets = admin().examineConsumeStats(ADDRESS, group, topic, TIMEOUT_MS).getOffsetTable().get(queue(topic, queue));
            }
            switch (call.getMethod().getName()) {
                case "queryOffset":
                    return offsets == null ? -1L : offsets.getConsumerOffset();
                case "queryPullOffset":
                    return offsets == null ? -1L : offsets.getPullOffset();
                default:
                    throw elsewhere(call.getMethod());
            }
        });
    }

    private static MessageQueue queue(String topic, int queue) {
        return new MessageQueue(topic, NAME, queue);
    }

    /** Returns the error of a method that this class does not answer: the null of a mock could let a test pass. */
    private static RuntimeException elsewhere(Object method) {
        return new UnsupportedOperationException("the broker is in another process: " + method);
    }
}
