import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.Result;
import org.junit.runner.manipulation.Filter;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/** Runs the tests of a class, all or those named after it, and prints a line for the beginning and the end of each. */
public final class ClassRunner {
    private ClassRunner() {
    }

    public static void main(String[] arguments) throws Exception {
        Request request = Request.aClass(Class.forName(arguments[0]));
        if (arguments.length > 1) {
            request = request.filterWith(new Named(java.util.Arrays.asList(arguments).subList(1, arguments.length)));
        }
        JUnitCore core = new JUnitCore();
        core.addListener(new Printer());
        Result result = core.run(request);
        System.exit(result.wasSuccessful() ? 0 : 1); // some tests leave threads that would keep the process alive
    }

    private static final class Named extends Filter {
        private final java.util.Collection<String> names;

        Named(java.util.Collection<String> names) {
            this.names = names;
        }

        @Override
        public boolean shouldRun(Description description) {
            return description.isSuite() || names.contains(description.getMethodName());
        }

        @Override
        public String describe() {
            return String.join(", ", names);
        }
    }

    private static final class Printer extends RunListener {
        private boolean failed;

        @Override
        public void testStarted(Description test) {
            failed = false;
            print("started", test, "");
        }

        @Override
        public void testFailure(Failure failure) {
            failed = true;
            print("failed", failure.getDescription(), failure.getTrace());
        }

        @Override
        public void testAssumptionFailure(Failure failure) {
            failed = true;
            print("skipped", failure.getDescription(), failure.getMessage());
        }

        @Override
        public void testIgnored(Description test) {
            print("skipped", test, "its authors switched it off");
        }

        @Override
        public void testFinished(Description test) {
            if (!failed) {
                print("passed", test, "");
            }
        }

        private static void print(String outcome, Description test, String detail) {
            String method = test.getMethodName() == null ? "(class)" : test.getMethodName();
            String encoded = java.util.Base64.getEncoder().encodeToString(String.valueOf(detail).getBytes(java.nio.charset.StandardCharsets.UTF_8));
            System.out.println("\nSUITE " + outcome + " " + method + " " + encoded);
            System.out.flush();
        }
    }
}
