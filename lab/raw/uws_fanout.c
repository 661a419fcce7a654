/* R9: fan-out over WebSocket and TLS with uWebSockets, by the C interface of socketify's library. It publishes every frame
 * that comes over the control connection (a length of four bytes, then the frame) to all clients.
 *
 * Usage: uws_fanout CERTIFICATE KEY
 * It prints the ports of clients and of the control connection in one line. */

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FRAME_MAX (1 << 20)
#define TLS 1
#define BINARY 2

/* The part of the interface that is used here. */
struct us_loop_t;
struct us_listen_socket_t;
typedef struct uws_app_s uws_app_t;
typedef struct uws_res_s uws_res_t;
typedef struct uws_req_s uws_req_t;
typedef struct uws_websocket_s uws_websocket_t;
typedef struct uws_socket_context_s uws_socket_context_t;

struct us_socket_context_options_t {
    const char *key_file_name;
    const char *cert_file_name;
    const char *passphrase;
    const char *dh_params_file_name;
    const char *ca_file_name;
    const char *ssl_ciphers;
    int ssl_prefer_low_memory_usage;
};

typedef struct {
    int port;
    const char *host;
    int options;
} uws_app_listen_config_t;

typedef struct {
    int compression;
    unsigned int maxPayloadLength;
    unsigned short idleTimeout;
    unsigned int maxBackpressure;
    bool closeOnBackpressureLimit;
    bool resetIdleTimeoutOnSend;
    bool sendPingsAutomatically;
    unsigned short maxLifetime;
    void (*upgrade)(uws_res_t *, uws_req_t *, uws_socket_context_t *, void *);
    void (*open)(uws_websocket_t *, void *);
    void (*message)(uws_websocket_t *, const char *, size_t, int, void *);
    void (*drain)(uws_websocket_t *, void *);
    void (*ping)(uws_websocket_t *, const char *, size_t, void *);
    void (*pong)(uws_websocket_t *, const char *, size_t, void *);
    void (*close)(uws_websocket_t *, int, const char *, size_t, void *);
    void (*subscription)(uws_websocket_t *, const char *, size_t, int, int, void *);
} uws_socket_behavior_t;

struct us_loop_t *uws_get_loop(void);
void uws_loop_defer(struct us_loop_t *, void (*)(void *), void *);
uws_app_t *uws_create_app(int, struct us_socket_context_options_t);
bool uws_constructor_failed(int, uws_app_t *);
void uws_ws(int, uws_app_t *, const char *, uws_socket_behavior_t, void *);
void uws_app_listen_with_config(int, uws_app_t *, uws_app_listen_config_t,
                                void (*)(struct us_listen_socket_t *, uws_app_listen_config_t, void *), void *);
void uws_app_run(int, uws_app_t *);
bool uws_publish(int, uws_app_t *, const char *, size_t, const char *, size_t, int, bool);
bool uws_ws_subscribe(int, uws_websocket_t *, const char *, size_t);
int us_socket_local_port(int, struct us_listen_socket_t *);

static const char topic[] = "all";
static uws_app_t *app;
static struct us_loop_t *loop;
static int control;

struct frame {
    uint32_t length;
    unsigned char bytes[];
};

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void enter(uws_websocket_t *socket, void *data) {
    (void)data;
    uws_ws_subscribe(TLS, socket, topic, sizeof topic - 1);
}

/* Publishes the payload of a frame: the library writes a header of its own. */
static void publish(void *data) {
    struct frame *frame = data;
    uint32_t header = frame->bytes[1] < 126 ? 2 : frame->bytes[1] == 126 ? 4 : 10;
    if (frame->length >= header) {
        uws_publish(TLS, app, topic, sizeof topic - 1, (const char *)frame->bytes + header, frame->length - header, BINARY,
                    false);
    }
    free(frame);
}

static bool read_all(int fd, void *bytes, size_t length) {
    return recv(fd, bytes, length, MSG_WAITALL) == (ssize_t)length;
}

/* Passes the frames of the control connection to the loop, until it ends. */
static void *follow(void *data) {
    (void)data;
    int orders = accept(control, NULL, NULL);
    uint32_t length;
    while (orders >= 0 && read_all(orders, &length, 4)) {
        if (length < 2 || length > FRAME_MAX) {
            fputs("a frame of no possible length\n", stderr);
            exit(1);
        }
        struct frame *frame = malloc(sizeof *frame + length);
        if (frame == NULL || !read_all(orders, frame->bytes, length)) {
            break;
        }
        frame->length = length;
        uws_loop_defer(loop, publish, frame);
    }
    exit(0);
}

static void announce(struct us_listen_socket_t *listening, uws_app_listen_config_t config, void *data) {
    (void)config;
    (void)data;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    pthread_t thread;
    control = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listening == NULL || control < 0 || bind(control, (struct sockaddr *)&address, sizeof address) < 0 ||
        listen(control, 1) < 0 || getsockname(control, (struct sockaddr *)&address, &length) < 0) {
        fail("listen");
    }
    if (pthread_create(&thread, NULL, follow, NULL) != 0) {
        fail("pthread_create");
    }
    printf("%d %d\n", us_socket_local_port(TLS, listening), ntohs(address.sin_port));
    fflush(stdout);
}

int main(int count, char **arguments) {
    if (count != 3) {
        fputs("usage: uws_fanout CERTIFICATE KEY\n", stderr);
        return 2;
    }
    loop = uws_get_loop();
    app = uws_create_app(TLS, (struct us_socket_context_options_t){.cert_file_name = arguments[1],
                                                                   .key_file_name = arguments[2]});
    if (app == NULL || uws_constructor_failed(TLS, app)) {
        fputs("the certificate or its key can't be used\n", stderr);
        return 1;
    }
    uws_socket_behavior_t behavior = {.maxPayloadLength = FRAME_MAX, .maxBackpressure = 16 << 20, .open = enter};
    uws_ws(TLS, app, "/*", behavior, NULL);
    uws_app_listen_with_config(TLS, app, (uws_app_listen_config_t){.host = "127.0.0.1"}, announce, NULL);
    uws_app_run(TLS, app);
    return 0;
}
