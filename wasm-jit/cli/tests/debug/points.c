struct point { int x, y; struct point *next; }; enum way { LEFT, RIGHT = 5 };
static const char *names[] = { "one", "two" };
int total = 5;

__attribute__((noinline)) int add(struct point *p, int n) {
  int sum = 0;
  for (int i = 0; i < n; i++) {
    sum += p->x + p->y;
    total += sum;
  }
  return sum;
}

__attribute__((export_name("main"))) int run(int n) {
  struct point b = { 3, 4, 0 };
  struct point a = { 1, 2, &b };
  const char *name = names[n & 1]; enum way way = n ? RIGHT : LEFT;
  int first = add(&a, n);
  int second = add(a.next, n);
  return first + second + (name[0] == 'o');
}
