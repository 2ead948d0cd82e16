import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.FileDescriptor;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/**
 * Commands as JSON objects, one a line, on standard input; one response a line on standard output.
 *
 * A response is an object, or {"error": the stack trace}. RocketMQ's own output goes to standard error.
 */
final class CommandLoop {
    /** Handles one command; "do" is its name. */
    interface Commands {
        Map<String, Object> handle(String name, JSONObject arguments) throws Exception;
    }

    private final PrintStream answers =
        new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);

    CommandLoop() {
        System.setOut(System.err);
    }

    void say(Map<String, Object> answer) {
        answers.println(JSON.toJSONString(answer));
    }

    void sayError(Throwable error) {
        StringWriter trace = new StringWriter();
        error.printStackTrace(new PrintWriter(trace));
        say(Map.of("error", trace.toString()));
    }

    /** Serve commands until standard input ends. */
    void run(Commands commands) throws IOException {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                JSONObject arguments = JSON.parseObject(line);
                say(commands.handle(arguments.getString("do"), arguments));
            } catch (Exception error) {
                sayError(error);
            }
        }
    }
}
