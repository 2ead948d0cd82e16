import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;

/** A producer and a push consumer that live until their process is ended; prints "client" and the consumer's id. */
public final class LiveClients {
    private LiveClients() {
    }

    public static void main(String[] arguments) throws Exception {
        String nameServer = arguments[0];
        String topic = arguments[1];
        DefaultMQProducer producer = new DefaultMQProducer(arguments[2]);
        producer.setNamesrvAddr(nameServer);
        producer.start();
        producer.send(new org.apache.rocketmq.common.message.Message(topic, "live".getBytes()));
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[3]);
        consumer.setNamesrvAddr(nameServer);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        consumer.start();
        System.out.println("client " + consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId());
    }
}
