struct two { int a; int b; };
int sink;
__attribute__((noinline)) int use(int x) { sink += x; return x; }
__attribute__((export_name("main"))) int pieces(int x) {
  struct two t = { x, x + 1 };
  use(t.a);
  return use(t.a + t.b);
}
