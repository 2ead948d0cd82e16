import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.parser.SelectorParser;

/** Applies RocketMQ's filters to messages. */
final class FilterDriver {
    public static void main(String[] arguments) throws IOException {
        new CommandLoop().run((name, command) -> evaluate(command));
    }

    /** "filter" of each of "messages": TRUE, FALSE, UNKNOWN, or FAILED if evaluating it raises; or "refused". */
    private static Map<String, Object> evaluate(JSONObject command) {
        Expression expression;
        try {
            expression = SelectorParser.parse(command.getString("filter"));
        } catch (MQFilterException error) {
            return Map.of("refused", String.valueOf(error.getCause()));
        }
        JSONArray messages = command.getJSONArray("messages");
        List<String> results = new ArrayList<>();
        for (int k = 0; k < messages.size(); k++) {
            results.add(result(expression, new Properties(messages.getJSONObject(k))));
        }
        return Map.of("results", results);
    }

    private static String result(Expression expression, Properties properties) {
        try {
            Object value = expression.evaluate(properties);
            return value == null ? "UNKNOWN" : value.toString().toUpperCase();
        } catch (Exception error) {
            return "FAILED";
        }
    }

    private static final class Properties implements EvaluationContext {
        private final JSONObject values;

        Properties(JSONObject values) {
            this.values = values;
        }

        @Override
        public Object get(String name) {
            return values.getString(name);
        }

        @Override
        public Map<String, Object> keyValues() {
            return new HashMap<>(values);
        }
    }
}
