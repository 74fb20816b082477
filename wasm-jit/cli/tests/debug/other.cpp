static int hidden = 2;
int other() { static int calls = 1000; calls++; return hidden + calls; }
