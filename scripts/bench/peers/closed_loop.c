/* A load without an interpreter: N connections, each with one request in flight, as from N machines.
 *
 *     closed_loop PORT CONNECTIONS REQUESTS < input
 *     closed_loop PORT 1 REQUESTS PERIOD_US < input
 *
 * The input: seven numbers of 32 bits in the machine's order (bytes of a greeting, bytes of a request, where in the
 * request its id, its counter and its time are, the protocol, bytes of a pull), a first counter of 64 bits, the
 * greeting, which is sent once on each connection, one request for each connection, and the pull. A request of
 * RocketMQ's clients has its id and its time as decimal digits, and the low half of its counter as hexadecimal ones.
 * Each connection first sends some requests that are not measured. Then the program prints "ready", waits for one more
 * byte of input, and prints one line of JSON: requests per second, p50 and p99 in microseconds, and its own CPU time,
 * in microseconds a request.
 *
 * With a period, the connection sends a request each time it has passed, and a second one waits for the messages with a
 * pull (Redis: XREAD) at a time; the line has "arrival_p50" and "arrival_p99" too, from the send on. The id of the pull
 * is where that of a request is, and its offset is in its last 8 bytes.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { WARM_UP = 10, EVENTS = 1024, ANSWER_BYTES = 65536, SILENCE_MS = 30000 };
enum { REDIS, FLINTMQ, ROCKETMQ };
enum { FIRST_OPAQUE = 10000000 }; /* no leading zeros, which JSON does not allow */
static const char ACCEPTED[] = "\x94\x01\x00", STORED[] = "{\"code\":0,";

struct header {
    uint32_t greeting_bytes, request_bytes, id_at, counter_at, time_at, protocol, pull_bytes;
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

static void connect_client(struct client *client, int port, const char *greeting) {
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
}

static void open_client(struct client *client, int port, const char *greeting) {
    connect_client(client, port, greeting);
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

static void print_times(const char *prefix, uint32_t *taken, long count) {
    qsort(taken, count, sizeof *taken, compare);
    printf("\"%sp50\": %.1f, \"%sp99\": %.1f, ", prefix, taken[count / 2] / 10.0, prefix,
           taken[count * 99 / 100] / 10.0);
}

static char last_id[64] = "$"; /* of Redis' last entry that arrived; "$": those that follow */

static void send_pull(struct client *consumer, char *pull) {
    char redis[256];
    size_t size = header.pull_bytes;
    if (header.protocol == FLINTMQ) {
        put32(pull + header.id_at, ++consumer->id);
        put64(pull + size - 8, consumer->counter);
    } else {
        pull = redis;
        size = snprintf(redis, sizeof redis,
                        "*6\r\n$5\r\nXREAD\r\n$5\r\nBLOCK\r\n$5\r\n30000\r\n$7\r\nSTREAMS\r\n$5\r\nbench\r\n"
                        "$%zu\r\n%s\r\n",
                        strlen(last_id), last_id);
    }
    if (send(consumer->fd, pull, size, 0) != (ssize_t)size) fail("send");
}

/* Return the number of messages in the answer to a pull, and note where the next one begins. */
static long receive_messages(struct client *consumer) {
    static char answers[1 << 20];
    ssize_t size = 0, got;
    long found = 0;
    do { /* Redis sends the number of its streams alone */
        if ((got = recv(consumer->fd, answers + size, sizeof answers - 1 - size, 0)) <= 0) fail("recv");
        answers[size += got] = 0;
    } while (size < 64 || memcmp(answers + size - 2, "\r\n", header.protocol == FLINTMQ ? 0 : 2));
    if (header.protocol == FLINTMQ) {
        uint32_t length, head, bytes, done = 0;
        memcpy(&length, answers, 4);
        memcpy(&head, answers + 4, 4);
        for (length = ntohl(length) - 4 - ntohl(head), head = 8 + ntohl(head); done < length; done += 4 + ntohl(bytes))
            memcpy(&bytes, answers + head + 4 * found++, 4);
        if (memcmp(answers + 8, ACCEPTED, 3)) fail("a pull was refused");
        consumer->counter += found;
        return found;
    }
    for (char *at = answers; (at = memmem(at, answers + size - at, "*2\r\n$", 5)); at += 5) {
        char id[sizeof last_id];
        if (sscanf(at + 5, "%*d\r\n%63[0-9-]\r\n", id) != 1 || !strchr(id, '-')) continue;
        strcpy(last_id, id);
        found++;
    }
    return found;
}

/* Send at a pace, and wait for the messages with one pull at a time. */
static int send_paced(struct client *producer, struct client *consumer, char *pull, long wanted, long period_us) {
    uint64_t *sent = calloc(wanted, sizeof *sent);
    uint32_t *acknowledged = calloc(wanted, sizeof *acknowledged), *arrival = calloc(wanted, sizeof *arrival);
    int timer = timerfd_create(CLOCK_MONOTONIC, 0), poll = epoll_create1(0);
    struct itimerspec period = {{period_us / 1000000, period_us % 1000000 * 1000}, {0, 1}};
    int fds[] = {timer, producer->fd, consumer->fd};
    for (int k = 0; k < 3; k++) {
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fds[k]};
        if (epoll_ctl(poll, EPOLL_CTL_ADD, fds[k], &event)) fail("epoll_ctl");
    }
    send_pull(consumer, pull);
    printf("ready\n");
    fflush(stdout);
    if (getchar() == EOF) return 2;
    double cpu = cpu_seconds();
    uint64_t began = now_ns(CLOCK_MONOTONIC), ticks;
    long sends = 0, answers = 0, arrivals = 0;
    timerfd_settime(timer, 0, &period, NULL);
    while (answers < wanted || arrivals < wanted) {
        struct epoll_event event;
        if (epoll_wait(poll, &event, 1, SILENCE_MS) <= 0) fail("no answer");
        if (event.data.fd == timer) {
            if (read(timer, &ticks, sizeof ticks) < 0) fail("read");
            if (sends == wanted || sends > answers) continue; /* the one before is late, so this one is left out */
            send_request(producer);
            sent[sends++] = producer->sent_ns;
        } else if (event.data.fd == producer->fd) {
            receive_answer(producer);
            acknowledged[answers] = (now_ns(CLOCK_MONOTONIC) - sent[answers]) / 100;
            answers++;
        } else {
            uint64_t now = now_ns(CLOCK_MONOTONIC);
            for (long found = receive_messages(consumer); found-- && arrivals < wanted; arrivals++)
                arrival[arrivals] = (now - sent[arrivals]) / 100;
            if (arrivals < wanted) send_pull(consumer, pull);
        }
    }
    double seconds = (now_ns(CLOCK_MONOTONIC) - began) / 1e9;
    cpu = cpu_seconds() - cpu;
    printf("{\"rate\": %.1f, ", wanted / seconds);
    print_times("", acknowledged, wanted);
    print_times("arrival_", arrival, wanted);
    printf("\"cpu\": %.2f}\n", cpu / wanted * 1e6);
    return 0;
}

int main(int count, char **arguments) {
    if (count != 4 && count != 5) return 2;
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
    if (count == 5) {
        struct client consumer = {.counter = WARM_UP};
        char *pull = malloc(header.pull_bytes + 1);
        read_input(pull, header.pull_bytes);
        if (header.protocol == FLINTMQ) {
            uint64_t first;
            memcpy(&first, pull + header.pull_bytes - 8, 8); /* the queue's end before the requests of the warm-up */
            consumer.counter += be64toh(first);
        }
        connect_client(&consumer, port, greeting);
        return send_paced(clients, &consumer, pull, wanted, atol(arguments[4]));
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
    printf("{\"rate\": %.1f, ", done / seconds);
    print_times("", taken, done);
    printf("\"cpu\": %.2f}\n", cpu / done * 1e6);
    return 0;
}
