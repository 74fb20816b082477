__attribute__((noinline)) int leaf(int v) { return v + 1; }
__attribute__((always_inline)) static inline int inner(int first, int unused, int last) {
  int removed = unused + 1;
  return leaf(first + last);
}
__attribute__((export_name("go"))) int go(int n) { return inner(n, 3, 1); }
