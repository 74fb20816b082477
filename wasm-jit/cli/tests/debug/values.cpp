struct Pair { int first; long long second; };
struct Flags { unsigned a : 3; int b : 5; unsigned long long wide : 40; };
static int hidden = 1;
static int calls = 50;
namespace ns {
int x = 10;
struct Base { int base; };
struct Der : Base { int own; static int st; };
int Der::st = 21;
__attribute__((noinline)) int use() { int calls = x; return calls + Der::st; }
}
int grid[2][3] = {{1, 2, 3}, {4, 5, 6}}; short wide[20][30]; __attribute__((used)) long double quad = 1.5, tenth = 0.1L;
int other();
__attribute__((noinline)) int counter() { static int calls = 3; calls++; return calls; }
__attribute__((always_inline)) static inline int twice(int v) { int doubled = v * 2; return doubled; }
int removed(int z) { return z * 3; }
__attribute__((noinline)) long long sum(Pair p, int &r, const Pair &c) {
  r += 1;
  return p.first + p.second + r + c.first;
}
int main(int argc, char **argv) {
  Flags f = { 5, -3, 1ull << 39 };
  Pair pairs[3] = {{1, 2}, {3, 4}, {5, 6}};
  Pair *p = pairs;
  ns::Der der; der.base = 7; der.own = 8;
  int r = argc;
  int &ref = r;
  long long s = sum(*p, ref, pairs[1]);
  s += twice(argc) + twice(r);
  s += counter() + ns::use() + other() + hidden + calls + grid[1][2] + wide[1][1] + f.b + der.base;
  return (int)s;
}
extern "C" __attribute__((export_name("go"))) int go(int n) { return main(n, 0); }
