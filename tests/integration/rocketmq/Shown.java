import com.alibaba.fastjson.JSON;
import java.io.BufferedWriter;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.Function;
import org.apache.rocketmq.common.message.MessageExt;

/** The parts of a message that a test compares, by the test's names of the fields. */
final class Shown {
    private Shown() {
    }

    /** A message whose body is decompressed. */
    static Map<String, Object> message(MessageExt message) {
        Map<String, Object> shown = new LinkedHashMap<>();
        shown.put("topic", message.getTopic());
        shown.put("queue", message.getQueueId());
        shown.put("queue_offset", message.getQueueOffset());
        shown.put("physical_offset", message.getCommitLogOffset());
        shown.put("flag", message.getFlag());
        shown.put("born_ms", message.getBornTimestamp());
        shown.put("born_host", host(message.getBornHost()));
        shown.put("store_ms", message.getStoreTimestamp());
        shown.put("store_host", host(message.getStoreHost()));
        shown.put("properties", message.getProperties() == null ? Map.of() : message.getProperties());
        shown.put("body_sha1", hex(sha1(message.getBody())));
        return shown;
    }

    /** The address's bytes in hex and the port. */
    static String host(SocketAddress address) {
        InetSocketAddress host = (InetSocketAddress) address;
        return hex(host.getAddress().getAddress()) + ":" + host.getPort();
    }

    static <T> void writeLines(Path path, Iterable<T> items, Function<T, Object> shown) throws IOException {
        try (BufferedWriter writer = Files.newBufferedWriter(path, StandardCharsets.UTF_8)) {
            for (T item : items) {
                writer.write(JSON.toJSONString(shown.apply(item)));
                writer.newLine();
            }
        }
    }

    private static byte[] sha1(byte[] body) {
        try {
            return MessageDigest.getInstance("SHA-1").digest(body == null ? new byte[0] : body);
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }

    private static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte each : bytes) {
            text.append(String.format("%02x", each));
        }
        return text.toString();
    }
}
