/* The oracle of `cargo bench -p benches --bench truth`: counts and times every call of a program that was compiled with
   -finstrument-functions. It shares no code with the product.

       cc -O2 -shared -fPIC oracle.c -o oracle.so
       ORACLE=app.%p.json LD_PRELOAD=$PWD/oracle.so ./app

   ORACLE           the file for the figures, JSON; %p is the process id. Without it nothing is counted.
   ORACLE_MODE      all (default): counts and times every call. count: only counts.
   ORACLE_ONLY      times the calls of one function and ignores all others: its address in the executable (0x401136), or its
                    symbol. The others cost a call and a comparison, or nothing:
   ORACLE_SITES     the output of another run in the mode "all". With ORACLE_ONLY, the call sites of all other functions that it
                    lists become NOPs when the program starts, and exits by jump RETs, except those in the function.

   Calls are exact. Times are read from the time-stamp counter. The oracle's own cost is measured at every call (two
   readings at each end) and, for the part that no reading can see, calibrated at start; both are subtracted from every call that is
   open. The remaining error is the effect of the measurement on caches and instruction-level parallelism: some nanoseconds a
   call, so a function that makes many short calls appears slower than it is. Hence ORACLE_ONLY, where nothing inside the
   function is timed.

   After a gap of more than 50 us between two events of a thread, the oracle reads how long the thread has waited for a processor
   (/proc/thread-self/schedstat). This time is subtracted and added up as off_cpu; shorter preemptions are not seen. Time blocked
   in the kernel (locks, sleep, I/O) belongs to the call.

   Entries and exits are matched by function on a stack of each thread. Entries that longjmp, an exception or a thread's end leaves
   unmatched are dropped when a later event comes from further up the machine stack; they count as calls and are not timed. A forked
   child starts at zero. Figures are written at exit, _exit and _Exit; not when a signal kills the process, nor at exec. Calls in
   signal handlers that interrupt the oracle are not counted (`interrupted`). Only the thread's own stack is
   supported. */

#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    STACK_FRAMES = 1 << 20,
    /* Buckets: exact below 2^SUB_BITS ticks, then 2^SUB_BITS for each power of two: no wider than 1.6 %, the middle within 0.8 %. */
    SUB_BITS = 6,
    SUB_BUCKETS = 1 << SUB_BITS,
    MAX_BITS = 44,
    BUCKETS = (MAX_BITS - SUB_BITS + 1) * SUB_BUCKETS,
    CHUNK_BYTES = 16 << 20,
    GAP_NS = 50000,
};

/* Two addresses further apart than this are not on the same stack. */
#define STACK_REACH (64ul << 20)

struct function {
    uintptr_t address;
    uint64_t calls, active, recursive, timed, unwound, open;
    /* Ticks: of outermost activations, of all, and without callees. */
    int64_t outer, all, self;
    uint64_t min, max, off_cpu, off_cpu_ns;
    uint32_t *histogram;
};

struct frame {
    struct function *function;
    uintptr_t sp;
    uint64_t start, lost;
    int64_t callees;
};

struct thread {
    struct thread *next;
    struct function *table; /* open addressing, a power of two */
    uint64_t capacity, used;
    struct frame *stack;
    uint64_t depth;
    uint64_t lost;       /* ticks that belong to no call: the oracle's, and waiting for a processor */
    uint64_t last;       /* time of the last event */
    uint64_t wait_ns;    /* of schedstat, when it was read last */
    uint64_t overflown, stray_exits, interrupted;
    int schedstat, busy;
};

static __thread struct thread *self_thread __attribute__((tls_model("initial-exec")));
static _Atomic(struct thread *) threads;

static enum { OFF, ALL, COUNT, ONLY } mode;
static uintptr_t only, base;
/* Call sites in the executable: the return address of a call of an instrumentation function, and
   the function for which it was made. */
enum { SITES = 1 << 21, SITE_CACHE = 1 << 12, CALL_BYTES = 5 };
struct site {
    _Atomic(uintptr_t) returns;
    uintptr_t function;
};
static struct site *sites;
static __thread uintptr_t known_sites[SITE_CACHE] __attribute__((tls_model("initial-exec")));
static uintptr_t text, text_end;
/* The targets of the executable's calls: stubs of its PLT. */
static _Atomic(uintptr_t) enter_stub, exit_stub;
static char output[4096];
static uint64_t begin_ticks, begin_ns, gap_ticks = 100000;
/* The cost of an empty call, in ticks: between its two inner readings, and outside of all readings.
   */
static uint64_t inner_cost, outer_cost;
static atomic_int written;

#define UNLIKELY(x) __builtin_expect(!!(x), 0)

static inline uint64_t ticks(void) {
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high)::"memory");
    return (uint64_t)high << 32 | low;
}

static uint64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Zeroed memory, never freed. The program's malloc may be instrumented, so it is not used. */
static void *room(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        static const char message[] = "oracle: out of memory\n";
        (void)!write(2, message, sizeof message - 1);
        syscall(SYS_exit_group, 97);
    }
    return memory;
}

static uint32_t *new_histogram(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static char *chunk;
    static size_t left;
    uint32_t *histogram;

    pthread_mutex_lock(&lock);
    if (left < BUCKETS * sizeof *histogram) {
        chunk = room(CHUNK_BYTES);
        left = CHUNK_BYTES;
    }
    histogram = (uint32_t *)(void *)chunk;
    chunk += BUCKETS * sizeof *histogram;
    left -= BUCKETS * sizeof *histogram;
    pthread_mutex_unlock(&lock);
    return histogram;
}

static unsigned bucket_of(uint64_t value) {
    if (value < SUB_BUCKETS)
        return (unsigned)value;
    const unsigned bits = 63 - (unsigned)__builtin_clzll(value);
    if (bits >= MAX_BITS)
        return BUCKETS - 1;
    return (bits - SUB_BITS + 1) * SUB_BUCKETS + (unsigned)(value >> (bits - SUB_BITS) & (SUB_BUCKETS - 1));
}

static double middle_of(unsigned bucket) {
    if (bucket < SUB_BUCKETS)
        return bucket;
    const unsigned shift = bucket / SUB_BUCKETS - 1;
    const uint64_t low = (uint64_t)(SUB_BUCKETS + bucket % SUB_BUCKETS) << shift;
    return (double)low + (double)((uint64_t)1 << shift) / 2 - 0.5;
}

/* The time the calling thread has waited for a processor while it could have run. */
static uint64_t waited_ns(struct thread *thread) {
    char text[96];
    uint64_t number = 0;
    const ssize_t bytes = pread(thread->schedstat, text, sizeof text - 1, 0);
    const char *at;

    if (bytes <= 0)
        return thread->wait_ns;
    text[bytes] = 0;
    at = strchr(text, ' ');
    if (at != NULL)
        number = strtoull(at + 1, NULL, 10);
    return number;
}

static void watch_processor(struct thread *thread) {
    thread->schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    thread->wait_ns = waited_ns(thread);
}

static struct thread *new_thread(void) {
    struct thread *thread = room(sizeof *thread);

    thread->capacity = 1 << 12;
    thread->table = room(thread->capacity * sizeof *thread->table);
    thread->stack = room((STACK_FRAMES + 1) * sizeof *thread->stack);
    watch_processor(thread);
    thread->last = ticks();
    thread->next = atomic_load(&threads);
    while (!atomic_compare_exchange_weak(&threads, &thread->next, thread)) {
    }
    self_thread = thread;
    return thread;
}

static inline uint64_t hash_of(uintptr_t address, uint64_t capacity) {
    return ((uint64_t)address * 0x9e3779b97f4a7c15u) >> 20 & (capacity - 1);
}

/* Functions move when the table grows, so the stack's frames are updated. */
static void grow(struct thread *thread) {
    const uint64_t capacity = thread->capacity * 4;
    struct function *table = room(capacity * sizeof *table), *old = thread->table;

    for (uint64_t i = 0; i < thread->capacity; i++) {
        if (old[i].address == 0)
            continue;
        uint64_t slot = hash_of(old[i].address, capacity);
        while (table[slot].address != 0)
            slot = (slot + 1) & (capacity - 1);
        table[slot] = old[i];
        /* The old table is not read again, so it can record where its entries have moved. */
        old[i].calls = slot;
    }
    for (uint64_t i = 0; i < thread->depth; i++)
        thread->stack[i].function = &table[thread->stack[i].function->calls];
    munmap(old, thread->capacity * sizeof *old);
    thread->table = table;
    thread->capacity = capacity;
}

static struct function *insert(struct thread *thread, uintptr_t address) {
    uint64_t slot;

    if (thread->used * 2 > thread->capacity)
        grow(thread);
    slot = hash_of(address, thread->capacity);
    while (thread->table[slot].address != 0)
        slot = (slot + 1) & (thread->capacity - 1);
    thread->used++;
    thread->table[slot].address = address;
    thread->table[slot].min = UINT64_MAX;
    return &thread->table[slot];
}

static inline struct function *find(struct thread *thread, uintptr_t address) {
    uint64_t slot = hash_of(address, thread->capacity);

    while (thread->table[slot].address != address) {
        if (thread->table[slot].address == 0)
            return insert(thread, address);
        slot = (slot + 1) & (thread->capacity - 1);
    }
    return &thread->table[slot];
}

/* A long time has passed since the thread's last event: the part in which the thread waited for a
   processor belongs to no call. */
static __attribute__((noinline)) void long_gap(struct thread *thread, uint64_t now) {
    const uint64_t gap = now - thread->last, wait_ns = waited_ns(thread);
    const double rate = (double)gap_ticks / GAP_NS;
    uint64_t waited = (uint64_t)((double)(wait_ns - thread->wait_ns) * rate);

    thread->wait_ns = wait_ns;
    if (waited > gap)
        waited = gap;
    thread->lost += waited;
    if (waited > gap_ticks / 50 && thread->depth > 0) {
        struct function *function = thread->stack[thread->depth - 1].function;
        function->off_cpu++;
        function->off_cpu_ns += (uint64_t)((double)waited / rate);
    }
}

static void drop(struct thread *thread) {
    struct function *function = thread->stack[--thread->depth].function;
    function->active--;
    function->unwound++;
}

void __cyg_profile_func_enter(void *function, void *call_site);
void __cyg_profile_func_exit(void *function, void *call_site);

static inline uint64_t hash_of_site(uintptr_t returns, uint64_t capacity) { return (returns * 0x9e3779b97f4a7c15u) >> 24 & (capacity - 1); }

/* The target of the call that returns to this address, if it is a call in the executable. */
static uintptr_t target_of(uintptr_t returns) {
    const unsigned char *call = (const unsigned char *)returns - CALL_BYTES;
    int32_t distance;

    if (returns < text + CALL_BYTES || returns > text_end || *call != 0xe8)
        return 0;
    memcpy(&distance, call + 1, sizeof distance);
    return returns + (uintptr_t)(intptr_t)distance;
}

/* Learns a call site. A tail call has none: the instruction before its return address is a call of
   something else. */
static __attribute__((noinline)) void learn(uintptr_t function, uintptr_t returns, _Atomic(uintptr_t) *stub) {
    const uintptr_t target = target_of(returns);
    uint64_t slot = hash_of_site(returns, SITES);
    uintptr_t none = 0;

    known_sites[hash_of_site(returns, SITE_CACHE)] = returns;
    if (target == 0)
        return;
    /* The very first call is an entry's, which is no tail call; an exit's stub is another one,
       preceded by the same kind of instruction: an indirect jump. */
    if (*stub == 0) {
        const unsigned char *code = (const unsigned char *)target;
        if (memcmp(code, "\xf3\x0f\x1e\xfa", 4) == 0)
            code += 4;
        if (*code == 0xf2)
            code++;
        if (code[0] != 0xff || code[1] != 0x25)
            return;
        int32_t distance;
        memcpy(&distance, code + 2, sizeof distance);
        const uintptr_t wanted = stub == &enter_stub ? (uintptr_t)__cyg_profile_func_enter : (uintptr_t)__cyg_profile_func_exit;
        if (*(const uintptr_t *)(code + 6 + distance) != wanted)
            return;
        *stub = target;
    }
    if (target != *stub)
        return;
    for (;;) {
        if (atomic_load(&sites[slot].returns) == returns)
            return;
        if (atomic_compare_exchange_strong(&sites[slot].returns, &none, returns)) {
            sites[slot].function = function;
            return;
        }
        if (none == returns)
            return;
        none = 0;
        slot = (slot + 1) & (SITES - 1);
    }
}

static inline void see_site(uintptr_t function, uintptr_t returns, _Atomic(uintptr_t) *stub) {
    if (UNLIKELY(known_sites[hash_of_site(returns, SITE_CACHE)] != returns))
        learn(function, returns, stub);
}

static void time_entry(struct thread *thread, uintptr_t address, uintptr_t sp, uint64_t arrived) {
    struct function *function = find(thread, address);
    struct frame *frame;

    if (UNLIKELY(arrived - thread->last > gap_ticks))
        long_gap(thread, arrived);
    function->calls++;
    while (thread->depth > 0 && thread->stack[thread->depth - 1].sp < sp && sp - thread->stack[thread->depth - 1].sp < STACK_REACH)
        drop(thread);
    if (UNLIKELY(thread->depth == STACK_FRAMES)) {
        thread->overflown++;
        return;
    }
    frame = &thread->stack[thread->depth++];
    if (function->active++ > 0)
        function->recursive++;
    frame->function = function;
    frame->sp = sp;
    frame->callees = 0;
    /* The cost is added after the last reading, but counts as before it. */
    const uint64_t lost = thread->lost;
    const uint64_t now = ticks();
    thread->lost = lost + (now - arrived);
    thread->last = now;
    frame->lost = lost + (now - arrived);
    frame->start = now;
}

/* The number of the frame that an exit ends; 0 if there is none. A function that a longjmp has left may still be on the stack,
   below the frame of the same function that ends now: of the frames below the stack pointer, it is the one that is furthest up. */
static uint64_t frame_of_exit(const struct thread *thread, uintptr_t address, uintptr_t sp) {
    uint64_t found = 0;

    for (uint64_t depth = thread->depth; depth > 0; depth--) {
        const struct frame *frame = &thread->stack[depth - 1];
        if (frame->sp > sp && frame->sp - sp < STACK_REACH)
            break;
        if (frame->function->address == address && (found == 0 || frame->sp > thread->stack[found - 1].sp))
            found = depth;
    }
    for (uint64_t depth = thread->depth; found == 0 && depth > 0; depth--)
        if (thread->stack[depth - 1].function->address == address)
            found = depth;
    return found;
}

static void time_exit(struct thread *thread, uintptr_t address, uintptr_t sp, uint64_t arrived) {
    struct function *function;
    struct frame *frame;
    uint64_t depth;
    int64_t duration;

    if (UNLIKELY(arrived - thread->last > gap_ticks))
        long_gap(thread, arrived);
    depth = frame_of_exit(thread, address, sp);
    if (UNLIKELY(depth == 0)) {
        thread->stray_exits++;
        return;
    }
    while (thread->depth > depth)
        drop(thread);
    frame = &thread->stack[--thread->depth];
    function = frame->function;
    duration = (int64_t)(arrived - frame->start - (thread->lost - frame->lost) - inner_cost);
    const int64_t own = duration - frame->callees;
    function->active--;
    /* Sums include negative values, which keeps them unbiased. */
    if (function->active == 0)
        function->outer += duration;
    function->all += duration;
    function->self += own;
    function->timed++;
    if (thread->depth > 0)
        thread->stack[thread->depth - 1].callees += duration;
    const uint64_t latency = duration < 0 ? 0 : (uint64_t)duration;
    if (latency < function->min)
        function->min = latency;
    if (latency > function->max)
        function->max = latency;
    if (UNLIKELY(function->histogram == NULL))
        function->histogram = new_histogram();
    function->histogram[bucket_of(latency)]++;
    const uint64_t now = ticks();
    thread->lost += (now - arrived) + inner_cost + outer_cost;
    thread->last = now;
}

void __cyg_profile_func_enter(void *function, void *call_site) {
    (void)call_site;
    const uintptr_t address = (uintptr_t)function;
    struct thread *thread;

    if (mode == ONLY && address != only)
        return;
    if (UNLIKELY(mode == OFF))
        return;
    const uint64_t arrived = ticks();
    thread = self_thread;
    if (UNLIKELY(thread == NULL))
        thread = new_thread();
    if (UNLIKELY(thread->busy)) {
        thread->interrupted++;
        return;
    }
    thread->busy = 1;
    atomic_signal_fence(memory_order_seq_cst);
    if (mode == COUNT)
        find(thread, address)->calls++;
    else {
        if (mode == ALL)
            see_site(address, (uintptr_t)__builtin_return_address(0), &enter_stub);
        time_entry(thread, address, (uintptr_t)__builtin_frame_address(0), arrived);
    }
    atomic_signal_fence(memory_order_seq_cst);
    thread->busy = 0;
}

void __cyg_profile_func_exit(void *function, void *call_site) {
    (void)call_site;
    const uintptr_t address = (uintptr_t)function;

    if ((mode == ONLY && address != only) || mode == OFF || mode == COUNT)
        return;
    const uint64_t arrived = ticks();
    struct thread *thread = self_thread;
    if (UNLIKELY(thread == NULL))
        thread = new_thread();
    if (UNLIKELY(thread->busy))
        return;
    thread->busy = 1;
    atomic_signal_fence(memory_order_seq_cst);
    if (mode == ALL)
        see_site(address, (uintptr_t)__builtin_return_address(0), &exit_stub);
    time_exit(thread, address, (uintptr_t)__builtin_frame_address(0), arrived);
    atomic_signal_fence(memory_order_seq_cst);
    thread->busy = 0;
}

static void forget(struct thread *thread) {
    memset(thread->table, 0, thread->capacity * sizeof *thread->table);
    thread->used = thread->depth = thread->lost = thread->overflown = thread->stray_exits = thread->interrupted = 0;
}

static void in_child(void) {
    struct thread *thread = self_thread;

    begin_ticks = ticks();
    begin_ns = monotonic_ns();
    atomic_store(&threads, thread);
    if (thread == NULL)
        return;
    thread->next = NULL;
    thread->busy = 0;
    forget(thread);
    if (thread->schedstat >= 0)
        close(thread->schedstat);
    watch_processor(thread);
    thread->last = ticks();
}

/* The cost of an empty call, by calls of the oracle's own functions: the least mean of many rounds.
   */
static void calibrate(void) {
    enum { ROUNDS = 200, CALLS = 200 };
    void (*volatile enter)(void *, void *) = __cyg_profile_func_enter, (*volatile leave)(void *, void *) = __cyg_profile_func_exit;
    /* Addresses that no function has. */
    void *const outer = (void *)1, *const inner = mode == ONLY ? (void *)only : (void *)2;
    double least_inner = 1e9, least_outer = 1e9;

    for (int round = 0; round < ROUNDS; round++) {
        struct thread *thread;
        struct function *function;
        uint64_t start, end, lost, bare;

        start = ticks();
        for (int i = 0; i < CALLS; i++)
            __asm__ volatile("" ::"r"(enter), "r"(leave), "r"(inner) : "memory");
        bare = ticks() - start;
        if (mode == ALL)
            enter(outer, NULL);
        enter(inner, NULL);
        leave(inner, NULL);
        thread = self_thread;
        function = find(thread, (uintptr_t)inner);
        const int64_t all = function->all;
        lost = thread->lost;
        start = ticks();
        for (int i = 0; i < CALLS; i++) {
            enter(inner, NULL);
            leave(inner, NULL);
        }
        end = ticks();
        const double mean = (double)(function->all - all) / CALLS;
        const double rest = (double)(end - start - (thread->lost - lost) - bare) / CALLS - mean;
        if (mean < least_inner)
            least_inner = mean;
        if (rest < least_outer)
            least_outer = rest;
        if (mode == ALL)
            leave(outer, NULL);
    }
    inner_cost = (uint64_t)(least_inner + 0.5);
    outer_cost = least_outer > 0 ? (uint64_t)(least_outer + 0.5) : 0;
    forget(self_thread);
}

static int first_object(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size;
    (void)unused;
    base = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && (info->dlpi_phdr[i].p_flags & PF_X) != 0) {
            text = base + info->dlpi_phdr[i].p_vaddr;
            text_end = text + info->dlpi_phdr[i].p_memsz;
        }
    return 1;
}

/* The value of a symbol of the executable; 0 when there is none. */
static uintptr_t symbol(const char *wanted) {
    const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat status;
    uintptr_t found = 0;

    if (file < 0 || fstat(file, &status) != 0)
        return 0;
    const size_t bytes = (size_t)status.st_size;
    const char *image = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (image == MAP_FAILED)
        return 0;
    const Elf64_Ehdr *header = (const void *)image;
    const Elf64_Shdr *sections = (const void *)(image + header->e_shoff);
    for (int i = 0; i < header->e_shnum && found == 0; i++) {
        if (sections[i].sh_type != SHT_SYMTAB)
            continue;
        const Elf64_Sym *symbols = (const void *)(image + sections[i].sh_offset);
        const char *names = image + sections[sections[i].sh_link].sh_offset;
        for (size_t s = 0; s < sections[i].sh_size / sizeof *symbols && found == 0; s++)
            if (ELF64_ST_TYPE(symbols[s].st_info) == STT_FUNC && strcmp(names + symbols[s].st_name, wanted) == 0)
                found = symbols[s].st_value;
    }
    munmap((void *)(uintptr_t)image, bytes);
    return found;
}

static void complain(const char *what, const char *value) {
    dprintf(2, "oracle: %s%s\n", what, value);
    syscall(SYS_exit_group, 97);
}

/* Removes the calls of all functions but one, at the call sites that another run has recorded. The
   program has one thread, and none of its code is running. */
static void remove_others(const char *path) {
    static const unsigned char nop[CALL_BYTES] = {0x0f, 0x1f, 0x44, 0x00, 0x00};
    const uintptr_t page = 4096, start = text & -page, bytes = ((text_end + page - 1) & -page) - start;
    FILE *file = fopen(path, "re");
    unsigned long function, returns, exit_target = 0, next = text_end;
    int32_t distance;
    char line[512];

    if (file == NULL || mprotect((void *)start, bytes, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
        complain("cannot use ", path);
    while (fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "\"exit_stub\": \"0x%lx\"", &exit_target) == 1) {
            exit_target += base;
        } else if (sscanf(line, "[%lu, %lu]", &function, &returns) == 2) {
            if (function + base > only && function + base < next)
                next = function + base;
            unsigned char *call = (unsigned char *)(returns + base) - CALL_BYTES;
            if (function + base == only)
                continue;
            if (returns + base > text_end || call < (unsigned char *)text || *call != 0xe8)
                complain("a call site of another program in ", path);
            memcpy(call, nop, sizeof nop);
        }
    }
    fclose(file);
    for (unsigned char *jump = (unsigned char *)text; exit_target != 0 && jump < (unsigned char *)text_end - CALL_BYTES; jump++) {
        if (*jump != 0xe9 || ((uintptr_t)jump >= only && (uintptr_t)jump < next))
            continue;
        memcpy(&distance, jump + 1, sizeof distance);
        if ((uintptr_t)jump + CALL_BYTES + (uintptr_t)(intptr_t)distance == exit_target)
            *jump = 0xc3;
    }
    mprotect((void *)start, bytes, PROT_READ | PROT_EXEC);
}

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("ORACLE"), *name = getenv("ORACLE_ONLY"), *how = getenv("ORACLE_MODE");
    const char *part;
    size_t length;

    if (file == NULL || *file == 0)
        return;
    part = strstr(file, "%p");
    length = part != NULL ? (size_t)(part - file) : strlen(file);
    if (strlen(file) + 32 > sizeof output)
        complain("ORACLE is too long", "");
    /* Replaces %p by the process id; a forked child has its own. */
    memcpy(output, file, length);
    if (part != NULL) {
        strcpy(output + length, "\1");
        strcat(output, part + 2);
    }
    dl_iterate_phdr(first_object, NULL);

    const uint64_t ns = monotonic_ns(), start = ticks();
    while (monotonic_ns() - ns < 20000000)
        continue;
    gap_ticks = (uint64_t)((double)(ticks() - start) * GAP_NS / (double)(monotonic_ns() - ns));

    if (name != NULL && *name != 0) {
        only = strncmp(name, "0x", 2) == 0 ? strtoull(name, NULL, 16) : symbol(name);
        if (only == 0)
            complain("no such function: ", name);
        only += base;
        mode = ONLY;
    } else if (how == NULL || strcmp(how, "all") == 0) {
        mode = ALL;
    } else if (strcmp(how, "count") == 0) {
        mode = COUNT;
    } else {
        complain("unknown ORACLE_MODE: ", how);
    }
    if (mode == ALL)
        sites = room(SITES * sizeof *sites);
    if (mode != COUNT)
        calibrate();
    if (mode == ONLY && getenv("ORACLE_SITES") != NULL)
        remove_others(getenv("ORACLE_SITES"));
    pthread_atfork(NULL, NULL, in_child);
    begin_ticks = ticks();
    begin_ns = monotonic_ns();
}

/* One function of all threads. */
struct sum {
    struct function function;
    uint64_t *histogram;
};

static double quantile(const struct sum *sum, double share) {
    const uint64_t rank = (uint64_t)(share * (double)(sum->function.timed - 1)) + 1;
    uint64_t seen = 0;

    for (unsigned bucket = 0; bucket < BUCKETS; bucket++) {
        seen += sum->histogram[bucket];
        if (seen >= rank) {
            const double value = middle_of(bucket), min = (double)sum->function.min, max = (double)sum->function.max;
            return value < min ? min : value > max ? max : value;
        }
    }
    return (double)sum->function.max;
}

static void add(struct sum *sum, const struct function *function) {
    struct function *all = &sum->function;

    all->calls += function->calls;
    all->recursive += function->recursive;
    all->timed += function->timed;
    all->unwound += function->unwound;
    all->open += function->active;
    all->outer += function->outer;
    all->all += function->all;
    all->self += function->self;
    all->off_cpu += function->off_cpu;
    all->off_cpu_ns += function->off_cpu_ns;
    if (function->min < all->min)
        all->min = function->min;
    if (function->max > all->max)
        all->max = function->max;
    if (function->histogram != NULL) {
        if (sum->histogram == NULL)
            sum->histogram = room(BUCKETS * sizeof *sum->histogram);
        for (unsigned bucket = 0; bucket < BUCKETS; bucket++)
            sum->histogram[bucket] += function->histogram[bucket];
    }
}

/* Calls that are still open have lasted until now. */
static void close_frames(struct thread *thread, uint64_t now) {
    for (uint64_t depth = thread->depth; depth > 0; depth--) {
        struct frame *frame = &thread->stack[depth - 1];
        struct function *function = frame->function;
        const int64_t duration = (int64_t)(now - frame->start - (thread->lost - frame->lost));
        uint64_t outer = 1;

        for (uint64_t below = 0; below < depth - 1; below++)
            outer &= thread->stack[below].function != function;
        if (outer)
            function->outer += duration;
        function->all += duration;
        function->self += duration - frame->callees;
        if (depth > 1)
            thread->stack[depth - 2].callees += duration;
    }
}

static void report(void) {
    enum { HASH = 1 << 20 };
    struct sum *sums;
    char path[sizeof output];
    double per_tick;
    FILE *file;
    const uint64_t now = ticks(), now_ns = monotonic_ns();
    uint64_t number = 0, overflown = 0, stray_exits = 0, interrupted = 0, lost = 0;
    const char *comma = "";
    struct rusage usage;

    if (mode == OFF || atomic_exchange(&written, 1) != 0)
        return;
    const int how = mode;
    mode = OFF;
    getrusage(RUSAGE_SELF, &usage);
    per_tick = (double)GAP_NS / (double)gap_ticks;
    sums = room(sizeof *sums * HASH);
    for (struct thread *thread = atomic_load(&threads); thread != NULL; thread = thread->next) {
        if (how != COUNT)
            close_frames(thread, now);
        overflown += thread->overflown;
        stray_exits += thread->stray_exits;
        interrupted += thread->interrupted;
        lost += thread->lost;
        for (uint64_t i = 0; i < thread->capacity; i++) {
            if (thread->table[i].address == 0)
                continue;
            uint64_t slot = hash_of(thread->table[i].address, HASH);
            while (sums[slot].function.address != 0 && sums[slot].function.address != thread->table[i].address)
                slot = (slot + 1) & (HASH - 1);
            if (sums[slot].function.address == 0) {
                sums[slot].function.address = thread->table[i].address;
                sums[slot].function.min = UINT64_MAX;
            }
            add(&sums[slot], &thread->table[i]);
            number++;
        }
    }
    {
        const char *mark = strchr(output, '\1');
        if (mark != NULL)
            snprintf(path, sizeof path, "%.*s%d%s", (int)(mark - output), output, (int)getpid(), mark + 1);
        else
            snprintf(path, sizeof path, "%s", output);
    }
    file = fopen(path, "we");
    if (file == NULL) {
        dprintf(2, "oracle: %s cannot be written\n", path);
        return;
    }
    fprintf(file,
            "{\"pid\": %d, \"mode\": \"%s\", \"base\": \"0x%lx\", \"end\": \"0x%lx\", \"duration_ns\": %lu, \"cpu_ns\": %lu, \"ticks_per_ns\": %.6f,\n"
            "\"inner_ticks\": %lu, \"outer_ticks\": %lu, \"lost_ns\": %.0f, \"overflown\": %lu, \"stray_exits\": %lu, \"interrupted\": %lu,\n"
            "\"exit_stub\": \"0x%lx\",\n\"functions\": [",
            (int)getpid(), how == COUNT ? "count" : how == ONLY ? "only" : "all", (unsigned long)base, (unsigned long)text_end,
            (unsigned long)(now_ns - begin_ns),
            (unsigned long)((uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000u +
                            (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000u),
            1 / per_tick, (unsigned long)inner_cost, (unsigned long)outer_cost, (double)lost * per_tick, (unsigned long)overflown,
            (unsigned long)stray_exits, (unsigned long)interrupted, exit_stub != 0 ? (unsigned long)(exit_stub - base) : 0ul);
    for (uint64_t i = 0; i < HASH; i++) {
        const struct function *function = &sums[i].function;
        if (function->address == 0)
            continue;
        fprintf(file, "%s\n{\"address\": \"0x%lx\", \"calls\": %lu, \"recursive\": %lu, \"open\": %lu, \"unwound\": %lu", comma,
                (unsigned long)function->address, (unsigned long)function->calls, (unsigned long)function->recursive,
                (unsigned long)function->open, (unsigned long)function->unwound);
        comma = ",";
        if (how != COUNT)
            fprintf(file, ", \"outer_ns\": %.1f, \"all_ns\": %.1f, \"self_ns\": %.1f, \"off_cpu\": %lu, \"off_cpu_ns\": %lu",
                    (double)function->outer * per_tick, (double)function->all * per_tick, (double)function->self * per_tick,
                    (unsigned long)function->off_cpu, (unsigned long)function->off_cpu_ns);
        if (function->timed > 0)
            fprintf(file, ", \"timed\": %lu, \"min\": %.1f, \"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f, \"max\": %.1f",
                    (unsigned long)function->timed, (double)function->min * per_tick, quantile(&sums[i], 0.5) * per_tick,
                    quantile(&sums[i], 0.9) * per_tick, quantile(&sums[i], 0.99) * per_tick, (double)function->max * per_tick);
        fputc('}', file);
    }
    /* Call sites: the function, and the return address of the call, in the executable. */
    fputs("\n],\n\"sites\": [", file);
    comma = "";
    for (uint64_t i = 0; sites != NULL && i < SITES; i++)
        if (sites[i].returns != 0) {
            fprintf(file, "%s\n[%lu, %lu]", comma, (unsigned long)(sites[i].function - base), (unsigned long)(sites[i].returns - base));
            comma = ",";
        }
    fputs("\n]}\n", file);
    fclose(file);
}

__attribute__((destructor)) static void end(void) { report(); }

__attribute__((noreturn)) void _exit(int status) {
    report();
    for (;;)
        syscall(SYS_exit_group, status);
}

__attribute__((noreturn)) void _Exit(int status) { _exit(status); }
