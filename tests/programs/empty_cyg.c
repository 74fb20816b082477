/* The two functions that -finstrument-functions calls, doing nothing. Linked into a program they are the baseline of
   the benchmarks: they cannot be interposed, so the program pays for its call sites and for nothing else. */

__attribute__((no_instrument_function)) void __cyg_profile_func_enter(void *function, void *call_site) {
    (void)function;
    (void)call_site;
}

__attribute__((no_instrument_function)) void __cyg_profile_func_exit(void *function, void *call_site) {
    (void)function;
    (void)call_site;
}
