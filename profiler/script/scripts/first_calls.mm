// In which order functions are called for the first time, and when.
report var order: map<u32, (str, u64)>;
var count: u32;
@once native:func:entry {
    order[count] = (fname, ns);
    count++;
}
