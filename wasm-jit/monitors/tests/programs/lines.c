// A loop in which one of two statements is executed.

static int unused(int n) {
    return n + 1;
}

__attribute__((export_name("run"))) void run(int n) {
    volatile int sum = 0;
    for (int i = 0; i < n; i++) {
        if (i > 100) {
            sum += unused(i);
        } else {
            sum += 1;
        }
    }
}
