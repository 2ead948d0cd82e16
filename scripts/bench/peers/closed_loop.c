/* A load without an interpreter: N connections, each with one request in flight, as from N machines.
 *
 *     closed_loop PORT CONNECTIONS REQUESTS < input
 *
 * The input: six numbers of 32 bits in the machine's order (bytes of a greeting, bytes of a request, where in the
 * request its id, its counter and its time are, and the protocol), a first counter of 64 bits, the greeting, which is
 * sent once on each connection, and one request for each connection. A request of RocketMQ's clients has its id and its
 * time as decimal digits, and the low half of its counter as hexadecimal ones. Each connection first sends some
 * requests that are not measured. Then the program prints "ready", waits for one more byte of input, and prints one
 * line of JSON: requests per second, p50 and p99 in microseconds, and its own CPU time, in microseconds a request.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { WARM_UP = 10, EVENTS = 1024, ANSWER_BYTES = 65536, SILENCE_MS = 30000 };
enum { REDIS, FLINTMQ, ROCKETMQ };
enum { FIRST_OPAQUE = 10000000 }; /* no leading zeros, which JSON does not allow */
static const char ACCEPTED[] = "\x94\x01\x00", STORED[] = "{\"code\":0,";

struct header {
    uint32_t greeting_bytes, request_bytes, id_at, counter_at, time_at, protocol;
} __attribute__((packed));

struct client {
    int fd;
    char *request;
    uint32_t id;
    uint64_t counter, sent_ns;
    long left;
};

static struct header header;
static char answer[ANSWER_BYTES];

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t now_ns(clockid_t clock) {
    struct timespec at;
    clock_gettime(clock, &at);
    return at.tv_sec * 1000000000ull + at.tv_nsec;
}

static void put32(char *to, uint32_t value) {
    value = htonl(value);
    memcpy(to, &value, 4);
}

static void put64(char *to, uint64_t value) {
    put32(to, value >> 32);
    put32(to + 4, value);
}

static void put_digits(char *to, uint64_t value, int base, int digits) {
    for (int at = digits - 1; at >= 0; at--, value /= base) to[at] = "0123456789ABCDEF"[value % base];
}

static void read_input(void *to, size_t size) {
    if (size && fread(to, size, 1, stdin) != 1) fail("input");
}

static void send_request(struct client *client) {
    if (header.protocol == FLINTMQ) {
        put32(client->request + header.id_at, ++client->id);
        put64(client->request + header.counter_at, client->counter++);
        put64(client->request + header.time_at, now_ns(CLOCK_REALTIME) / 1000000);
    } else if (header.protocol == ROCKETMQ) {
        put_digits(client->request + header.id_at, FIRST_OPAQUE + ++client->id, 10, 8);
        put_digits(client->request + header.counter_at, client->counter++, 16, 8);
        put_digits(client->request + header.time_at, now_ns(CLOCK_REALTIME) / 1000000, 10, 13);
    }
    client->left--;
    client->sent_ns = now_ns(CLOCK_MONOTONIC);
    if (send(client->fd, client->request, header.request_bytes, 0) != (ssize_t)header.request_bytes) fail("send");
}

static void receive_answer(struct client *client) {
    ssize_t size = recv(client->fd, answer, sizeof answer, 0);
    if (size <= 0) fail("recv");
    int accepted = header.protocol == FLINTMQ    ? size >= 16 && !memcmp(answer + 8, ACCEPTED, 3)
                   : header.protocol == ROCKETMQ ? size >= 32 && !memcmp(answer + 8, STORED, sizeof STORED - 1)
                                                 : answer[0] != '-';
    if (!accepted) {
        int before = header.protocol == REDIS ? 0 : 8; /* the lengths */
        fprintf(stderr, "a request was refused: %.*s\n", (int)size - before, answer + before);
        exit(1);
    }
}

static void open_client(struct client *client, int port, const char *greeting) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int one = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    client->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (client->fd < 0 || connect(client->fd, (void *)&address, sizeof address)) fail("connect");
    setsockopt(client->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (header.greeting_bytes) {
        if (send(client->fd, greeting, header.greeting_bytes, 0) < 0) fail("send");
        receive_answer(client);
    }
    for (int request = 0; request < WARM_UP; request++) {
        send_request(client);
        receive_answer(client);
    }
}

static int compare(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

static double cpu_seconds(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

int main(int count, char **arguments) {
    if (count != 4) return 2;
    int port = atoi(arguments[1]), connections = atoi(arguments[2]);
    long each = atol(arguments[3]) / connections, wanted = each * connections, done = 0;
    uint64_t counter;
    read_input(&header, sizeof header);
    read_input(&counter, sizeof counter);
    char *greeting = malloc(header.greeting_bytes + 1);
    read_input(greeting, header.greeting_bytes);
    struct client *clients = calloc(connections, sizeof *clients);
    uint32_t *taken = malloc((wanted + 1) * sizeof *taken); /* in tenths of a microsecond */
    int poll = epoll_create1(0);
    for (int number = 0; number < connections; number++) {
        struct client *client = clients + number;
        client->request = malloc(header.request_bytes);
        client->counter = counter;
        read_input(client->request, header.request_bytes);
        open_client(client, port, greeting);
        client->left = each;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = client};
        if (epoll_ctl(poll, EPOLL_CTL_ADD, client->fd, &event)) fail("epoll_ctl");
    }
    printf("ready\n");
    fflush(stdout);
    if (getchar() == EOF) return 2;
    double cpu = cpu_seconds();
    uint64_t began = now_ns(CLOCK_MONOTONIC);
    for (int number = 0; number < connections; number++) send_request(clients + number);
    struct epoll_event events[EVENTS];
    while (done < wanted) {
        int ready = epoll_wait(poll, events, EVENTS, SILENCE_MS);
        if (ready <= 0) fail("no answer");
        for (int k = 0; k < ready; k++) {
            struct client *client = events[k].data.ptr;
            receive_answer(client);
            taken[done++] = (now_ns(CLOCK_MONOTONIC) - client->sent_ns) / 100;
            if (client->left > 0) send_request(client);
        }
    }
    double seconds = (now_ns(CLOCK_MONOTONIC) - began) / 1e9;
    cpu = cpu_seconds() - cpu;
    qsort(taken, done, sizeof *taken, compare);
    printf("{\"rate\": %.1f, \"p50\": %.1f, \"p99\": %.1f, \"cpu\": %.2f}\n", done / seconds, taken[done / 2] / 10.0,
           taken[done * 99 / 100] / 10.0, cpu / done * 1e6);
    return 0;
}
