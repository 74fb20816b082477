static int total;
__attribute__((noinline)) int leaf(int v) { total += v; return total; }
__attribute__((always_inline)) static inline int inner(int a) {
  int doubled = a * 2;
  return leaf(doubled);
}
__attribute__((always_inline)) static inline int middle(int a, int b) {
  int sum = a + b;
  sum += inner(sum);
  return sum;
}
__attribute__((noinline)) int outer(int n) {
  int a = 100;
  a += middle(n, 1);
  a += middle(n, 2);
  return a;
}
__attribute__((export_name("go"))) int go(int n) { return outer(n); }
