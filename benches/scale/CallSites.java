import java.lang.invoke.CallSite;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.invoke.MutableCallSite;
import java.lang.invoke.VarHandle;
import java.lang.invoke.VolatileCallSite;
import java.lang.management.ManagementFactory;

/**
 * One thread changes the target of a call site, other threads call through it.
 *
 * <p>Usage: {@code java -Dsite=mutable|volatile CallSites EXECUTORS NANOSECONDS_BETWEEN_TOGGLES MILLISECONDS}
 *
 * <p>Warms up until the calls become no faster, then measures four times: the one target, the other, toggled, and
 * untoggled again; each after a tenth of a second of the same. Prints a line for each: calls of the one target, calls of the
 * other, nanoseconds of all executors together, their processor time, toggles, nanoseconds of the toggling thread.
 */
public final class CallSites {
    /** What one thread has called. Its neighbours in memory are kept a cache line and more away. */
    static final class Seen {
        long a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15;
        long inactive;
        long active;
        long b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, b10, b11, b12, b13, b14, b15;
    }

    private static final MethodHandles.Lookup LOOKUP = MethodHandles.lookup();
    private static final MethodHandle[] TARGETS = {target("inactive"), target("active")};
    private static final VarHandle INACTIVE = field("inactive");
    private static final VarHandle ACTIVE = field("active");
    private static final boolean IS_VOLATILE = "volatile".equals(System.getProperty("site"));
    private static final CallSite SITE =
            IS_VOLATILE ? new VolatileCallSite(TARGETS[0]) : new MutableCallSite(TARGETS[0]);
    private static final MutableCallSite[] TO_SYNC = IS_VOLATILE ? null : new MutableCallSite[] {(MutableCallSite) SITE};
    private static final MethodHandle CALL = SITE.dynamicInvoker();

    private static final int CALLS_BETWEEN_LOOKS = 4096;
    private static final long NEVER = Long.MAX_VALUE;

    private static volatile boolean isOver;

    // Opaque accesses are made one by one: no compiler may add them up and drop the loop.

    static void inactive(Seen seen) {
        INACTIVE.setOpaque(seen, (long) INACTIVE.getOpaque(seen) + 1);
    }

    static void active(Seen seen) {
        ACTIVE.setOpaque(seen, (long) ACTIVE.getOpaque(seen) + 1);
    }

    private static MethodHandle target(String name) {
        try {
            return LOOKUP.findStatic(CallSites.class, name, MethodType.methodType(void.class, Seen.class));
        } catch (ReflectiveOperationException e) {
            throw new AssertionError(e);
        }
    }

    private static VarHandle field(String name) {
        try {
            return LOOKUP.findVarHandle(Seen.class, name, long.class);
        } catch (ReflectiveOperationException e) {
            throw new AssertionError(e);
        }
    }

    private static void set(int target) {
        SITE.setTarget(TARGETS[target]);
        if (TO_SYNC != null) {
            MutableCallSite.syncAll(TO_SYNC);
        }
    }

    private static void execute(Seen seen) throws Throwable {
        for (int i = 0; i < CALLS_BETWEEN_LOOKS; i++) {
            CALL.invokeExact(seen);
        }
    }

    /** A thread that calls through the site. */
    private static final class Executor extends Thread {
        final Seen seen = new Seen();
        long nanoseconds;
        long processorTime;

        @Override
        public void run() {
            long begin = System.nanoTime();
            try {
                while (!isOver) {
                    execute(seen);
                }
            } catch (Throwable e) {
                throw new AssertionError(e);
            }
            nanoseconds = System.nanoTime() - begin;
            processorTime = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
        }
    }

    /** What was seen while the site was toggled. */
    private record Run(long inactive, long active, long nanoseconds, long processorTime, long toggles, long elapsed) {
        double speed() {
            return (double) (inactive + active) / nanoseconds;
        }

        void print() {
            System.out.println(inactive + " " + active + " " + nanoseconds + " " + processorTime + " " + toggles + " " + elapsed);
        }
    }

    /** Toggles the site, from target {@code first} on, while executors call through it. */
    private static Run run(int executors, int first, long interval, long duration) throws InterruptedException {
        set(first);
        isOver = false;
        Executor[] threads = new Executor[executors];
        for (int i = 0; i < executors; i++) {
            threads[i] = new Executor();
            threads[i].start();
        }
        long toggles = 0;
        long begin = System.nanoTime();
        long next = interval == NEVER ? NEVER : begin + interval;
        long now = begin;
        for (; now - begin < duration; now = System.nanoTime()) {
            if (now < next) {
                Thread.onSpinWait();
                continue;
            }
            toggles++;
            set((int) (first + toggles & 1));
            next = (now - next > interval ? now : next) + interval;
        }
        isOver = true;
        long inactive = 0, active = 0, nanoseconds = 0, processorTime = 0;
        for (Executor thread : threads) {
            thread.join();
            inactive += thread.seen.inactive;
            active += thread.seen.active;
            nanoseconds += thread.nanoseconds;
            processorTime += thread.processorTime;
        }
        return new Run(inactive, active, nanoseconds, processorTime, toggles, now - begin);
    }

    /** Runs with both targets in turns, until ten runs in a row were not faster than the fastest before by a twentieth. */
    private static void warmUp() throws InterruptedException {
        double fastest = 0;
        for (int runs = 0, since = 0; runs < 100 && since < 10; runs++) {
            // One change after the first few: each makes the virtual machine compile the loop again.
            double speed = run(1, runs < 3 ? 0 : 1, NEVER, 20_000_000).speed();
            since = speed > fastest * 1.05 ? 0 : since + 1;
            fastest = Math.max(fastest, speed);
        }
    }

    /** A run after a tenth of a second of the same, in which the compiler could settle on what happens. */
    private static Run settled(int executors, int target, long interval, long duration) throws InterruptedException {
        run(executors, target, interval, 100_000_000);
        return run(executors, target, interval, duration);
    }

    public static void main(String[] arguments) throws InterruptedException {
        int executors = Integer.parseInt(arguments[0]);
        long interval = Long.parseLong(arguments[1]);
        long duration = Long.parseLong(arguments[2]) * 1_000_000;
        warmUp();
        settled(executors, 0, NEVER, duration).print();
        settled(executors, 1, NEVER, duration).print();
        settled(executors, 0, interval, duration).print();
        settled(executors, 1, NEVER, duration).print();
    }
}
