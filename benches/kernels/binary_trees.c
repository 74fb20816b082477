// Trees of depth n are built, traversed and freed, with an allocator that keeps a free list.
#include "kernel.h"

enum { MAX_N = 18 };
typedef struct Node {
    struct Node *left, *right;
} Node;
static Node nodes[2 << MAX_N];
static Node *free_nodes;

static Node *allocate(void) {
    Node *node = free_nodes;
    if (!node) __builtin_trap();
    free_nodes = node->left;
    return node;
}

static void release(Node *node) {
    node->left = free_nodes;
    free_nodes = node;
}

static Node *make(int depth) {
    Node *node = allocate();
    node->left = depth > 0 ? make(depth - 1) : 0;
    node->right = depth > 0 ? make(depth - 1) : 0;
    return node;
}

static uint32_t count(const Node *node) { return node ? 1 + count(node->left) + count(node->right) : 0; }

static void unmake(Node *node) {
    if (!node) return;
    Node *right = node->right;
    unmake(node->left);
    unmake(right);
    release(node);
}

uint64_t kernel(int n) {
    limit(n, MAX_N);
    free_nodes = 0;
    for (int i = (2 << n) - 1; i-- > 0;) release(&nodes[i]);
    uint64_t sum = 0;
    for (int depth = 2; depth <= n; depth += 2) {
        for (int turn = 0; turn < 4 << (n - depth); turn++) {
            Node *tree = make(depth);
            sum = fold(sum, count(tree));
            unmake(tree);
        }
    }
    return sum;
}
