import java.io.IOException;

/**
 * One Kafka broker that is also its own controller, until standard input is closed: it ends with whoever started it,
 * however that one ended.
 *
 * Arguments: the file of settings, and an id for the cluster. The folder of the log is formatted first.
 */
final class KafkaBroker {
    private KafkaBroker() {}

    public static void main(String[] arguments) {
        String settings = arguments[0];
        Thread watch = new Thread(KafkaBroker::endWithStandardInput, "standard input");
        watch.setDaemon(true);
        watch.start();
        String[] format = {"format", "--config", settings, "--cluster-id", arguments[1]};
        int failed = kafka.tools.StorageTool.execute(format, System.out);
        if (failed != 0) {
            System.exit(failed);
        }
        kafka.Kafka.main(new String[] {settings});
    }

    private static void endWithStandardInput() {
        try {
            while (System.in.read() >= 0) {
                // Nothing is said there; only its end counts.
            }
        } catch (IOException gone) {
            System.err.println("standard input: " + gone);
        }
        // Without an orderly shutdown: the log is thrown away.
        Runtime.getRuntime().halt(0);
    }
}
