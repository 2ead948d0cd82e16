import java.io.DataInputStream;
import java.io.BufferedInputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A topic and its messages.
 *
 * create TOPIC PARTITIONS: waits until the broker is there.
 * fill TOPIC COUNT BODY_BYTES: bodies from standard input, acknowledged.
 * pace TOPIC COUNT BODY_BYTES PER_SECOND: each body begins with the time when it was made, in microseconds.
 */
final class KafkaLoad {
    private static final int START_TIMEOUT_MS = 60_000;

    private final String bootstrap;
    private final AtomicReference<Exception> failure = new AtomicReference<>();

    private KafkaLoad(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] arguments) throws Exception {
        KafkaLoad load = new KafkaLoad(arguments[0]);
        String topic = arguments[2];
        int count = Integer.parseInt(arguments[3]);
        switch (arguments[1]) {
            case "create" -> load.create(topic, count);
            case "fill" -> load.fill(topic, count, Integer.parseInt(arguments[4]));
            case "pace" -> load.pace(topic, count, Integer.parseInt(arguments[4]), Integer.parseInt(arguments[5]));
            default -> throw new IllegalArgumentException(arguments[1]);
        }
    }

    private void create(String topic, int partitions) throws Exception {
        Properties settings = settings();
        settings.put("default.api.timeout.ms", START_TIMEOUT_MS);
        try (Admin admin = Admin.create(settings)) {
            admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all().get();
        }
    }

    private void fill(String topic, int count, int bodyBytes) throws Exception {
        Properties settings = settings();
        settings.put("batch.size", 256 << 10);
        settings.put("linger.ms", 5);
        try (Producer<byte[], byte[]> producer = producer(settings);
                DataInputStream bodies = new DataInputStream(new BufferedInputStream(System.in, 1 << 20))) {
            for (int number = 0; number < count; number++) {
                byte[] body = new byte[bodyBytes];
                bodies.readFully(body);
                send(producer, topic, number, body);
            }
        }
        check();
    }

    private void pace(String topic, int count, int bodyBytes, int perSecond) throws Exception {
        Properties settings = settings();
        settings.put("linger.ms", 0);
        try (Producer<byte[], byte[]> producer = producer(settings)) {
            long begin = System.nanoTime();
            for (int number = 0; number < count; number++) {
                long due = begin + number * 1_000_000_000L / perSecond;
                for (long wait; (wait = due - System.nanoTime()) > 0; ) {
                    LockSupport.parkNanos(wait);
                }
                long now = ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
                send(producer, topic, number, ByteBuffer.allocate(bodyBytes).putLong(now).array());
            }
        }
        check();
    }

    private void send(Producer<byte[], byte[]> producer, String topic, int number, byte[] body) throws Exception {
        byte[] key = String.format("order-%08d", number).getBytes(StandardCharsets.US_ASCII);
        producer.send(new ProducerRecord<>(topic, key, body), (stored, error) -> {
            if (error != null) {
                failure.compareAndSet(null, error);
            }
        });
        check();
    }

    private void check() throws IOException {
        if (failure.get() != null) {
            throw new IOException("a message was not acknowledged", failure.get());
        }
    }

    private Properties settings() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        return settings;
    }

    private static Producer<byte[], byte[]> producer(Properties settings) {
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }
}
