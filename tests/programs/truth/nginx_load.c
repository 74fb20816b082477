/* Loads a server: several clients ask for files over kept connections, one request after the other; then the server is told to quit.

   usage: nginx_load FOLDER CLIENTS REQUESTS

   The server listens on FOLDER/socket and has its process id in FOLDER/nginx.pid. The files are /0 to /9, and /10 is not there; each client makes
   REQUESTS requests. Prints the number of bytes of all bodies. */

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CLIENTS = 64, PATIENCE_MS = 60000 };

static char socket_path[sizeof((struct sockaddr_un *)NULL)->sun_path];
static char pid_path[4096];
static unsigned requests;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

/* Even if a client fails: nothing else would end the server. */
static void stop_server(void) {
    FILE *file = fopen(pid_path, "r");
    long server;

    if (file != NULL && fscanf(file, "%ld", &server) == 1)
        kill((pid_t)server, SIGQUIT);
}

/* A connection; waits until the server is there. */
static int connect_to_server(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const struct timespec moment = {.tv_nsec = 1000000};

    strcpy(address.sun_path, socket_path);
    for (int ms = 0; ms < PATIENCE_MS; ms++) {
        const int connection = socket(AF_UNIX, SOCK_STREAM, 0);
        if (connect(connection, (struct sockaddr *)&address, sizeof address) == 0)
            return connection;
        close(connection);
        nanosleep(&moment, NULL);
    }
    fail(socket_path);
    return -1;
}

/* Reads one answer, and returns the length of its body. */
static size_t answer(int connection) {
    static __thread char bytes[1 << 17];
    size_t have = 0;
    const char *end, *length;

    do {
        const ssize_t more = read(connection, bytes + have, sizeof bytes - 1 - have);
        if (more <= 0)
            fail("read");
        have += (size_t)more;
        bytes[have] = 0;
    } while ((end = strstr(bytes, "\r\n\r\n")) == NULL);
    length = strstr(bytes, "Content-Length: ");
    if (length == NULL || length > end) {
        fprintf(stderr, "an answer without length: %s\n", bytes);
        exit(1);
    }
    const size_t body = strtoul(length + 16, NULL, 10), whole = (size_t)(end + 4 - bytes) + body;
    while (have < whole) {
        const ssize_t more = read(connection, bytes, sizeof bytes - 1 < whole - have ? sizeof bytes - 1 : whole - have);
        if (more <= 0)
            fail("read");
        have += (size_t)more;
    }
    return body;
}

static void *client(void *sum) {
    const int connection = connect_to_server();
    char request[256];

    for (unsigned i = 0; i < requests; i++) {
        const int length = snprintf(request, sizeof request,
                                    "GET /%u HTTP/1.1\r\nHost: localhost\r\nUser-Agent: load\r\nAccept: */*\r\nX-Number: %u\r\n\r\n", i % 11, i);
        if (write(connection, request, (size_t)length) != length)
            fail("write");
        *(size_t *)sum += answer(connection);
    }
    close(connection);
    return NULL;
}

int main(int argc, char **argv) {
    const unsigned clients = argc > 3 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;
    size_t sums[MAX_CLIENTS] = {0}, sum = 0;
    pthread_t threads[MAX_CLIENTS];

    if (clients == 0 || clients > MAX_CLIENTS) {
        fprintf(stderr, "usage: nginx_load FOLDER CLIENTS REQUESTS\n");
        return 1;
    }
    requests = (unsigned)strtoul(argv[3], NULL, 10);
    snprintf(socket_path, sizeof socket_path, "%s/socket", argv[1]);
    snprintf(pid_path, sizeof pid_path, "%s/nginx.pid", argv[1]);
    atexit(stop_server);
    for (unsigned i = 0; i < clients; i++)
        if (pthread_create(&threads[i], NULL, client, &sums[i]) != 0)
            fail("pthread_create");
    for (unsigned i = 0; i < clients; i++) {
        pthread_join(threads[i], NULL);
        sum += sums[i];
    }
    printf("%zu bytes\n", sum);
    return 0;
}
