/* R8: raw fan-out over TLS with OpenSSL. It sends every frame that comes over the control connection (a length of four
 * bytes, then the bytes) to every client, with one SSL_write for each.
 *
 * Usage: openssl_fanout CERTIFICATE KEY
 * It prints the ports of clients and of the control connection in one line. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define SOCKETS_MAX 32768
#define EVENTS_MAX 1024
#define INBOX_MAX (1 << 20)
/* Time for a client to read, before it counts as gone. */
#define WAIT_MS 10000

struct client {
    SSL *ssl;
    int is_open;
};

static struct client clients[SOCKETS_MAX];
static int highest;
static unsigned char inbox[INBOX_MAX];
static size_t filled;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static int listener(int *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || listen(fd, 4096) < 0 ||
        getsockname(fd, (struct sockaddr *)&address, &length) < 0) {
        fail("listen");
    }
    *port = ntohs(address.sin_port);
    return fd;
}

static void watch(int epoll, int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0) {
        fail("epoll_ctl");
    }
}

static void leave(int fd) {
    SSL_free(clients[fd].ssl);
    clients[fd] = (struct client){0};
    close(fd);
}

/* Sends all bytes, and waits while the socket is full. */
static void send_all(int fd, const void *bytes, int length) {
    for (;;) {
        int sent = SSL_write(clients[fd].ssl, bytes, length);
        if (sent > 0) {
            return;
        }
        if (SSL_get_error(clients[fd].ssl, sent) != SSL_ERROR_WANT_WRITE) {
            leave(fd);
            return;
        }
        struct pollfd wait = {.fd = fd, .events = POLLOUT};
        if (poll(&wait, 1, WAIT_MS) <= 0) {
            leave(fd);
            return;
        }
    }
}

static void welcome(int epoll, int listening, SSL_CTX *context) {
    int fd, on = 1;
    while ((fd = accept4(listening, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        SSL *ssl = fd < SOCKETS_MAX ? SSL_new(context) : NULL;
        if (ssl == NULL || SSL_set_fd(ssl, fd) != 1) {
            close(fd);
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        SSL_set_accept_state(ssl);
        clients[fd] = (struct client){.ssl = ssl};
        highest = fd > highest ? fd : highest;
        watch(epoll, fd);
    }
}

static void advance(int fd) {
    char ignored[4096];
    int result;
    if (!clients[fd].is_open) {
        result = SSL_do_handshake(clients[fd].ssl);
        if (result == 1) {
            clients[fd].is_open = 1;
            /* Confirms to the client that it is connected. */
            send_all(fd, "", 1);
            return;
        }
    } else {
        result = SSL_read(clients[fd].ssl, ignored, sizeof ignored);
        if (result > 0) {
            return;
        }
    }
    int error = SSL_get_error(clients[fd].ssl, result);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) {
        leave(fd);
    }
}

/* Sends the complete frames of the inbox to all clients. */
static void replay(void) {
    size_t at = 0;
    uint32_t length;
    while (filled - at >= 4) {
        memcpy(&length, inbox + at, 4);
        if (length > INBOX_MAX - 4) {
            fputs("a frame that is too long\n", stderr);
            exit(1);
        }
        if (filled - at - 4 < length) {
            break;
        }
        for (int fd = 0; fd <= highest; fd++) {
            if (clients[fd].is_open) {
                send_all(fd, inbox + at + 4, (int)length);
            }
        }
        at += 4 + length;
    }
    filled -= at;
    memmove(inbox, inbox + at, filled);
}

int main(int count, char **arguments) {
    int client_port, control_port, orders = -1;
    signal(SIGPIPE, SIG_IGN);
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    if (count != 3 || context == NULL || SSL_CTX_use_certificate_chain_file(context, arguments[1]) != 1 ||
        SSL_CTX_use_PrivateKey_file(context, arguments[2], SSL_FILETYPE_PEM) != 1) {
        fputs("usage: openssl_fanout CERTIFICATE KEY\n", stderr);
        return 2;
    }
    SSL_CTX_set_mode(context, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    int listening = listener(&client_port), control = listener(&control_port);
    watch(epoll, listening);
    watch(epoll, control);
    printf("%d %d\n", client_port, control_port);
    fflush(stdout);
    for (;;) {
        struct epoll_event events[EVENTS_MAX];
        int ready = epoll_wait(epoll, events, EVENTS_MAX, -1);
        if (ready < 0 && errno != EINTR) {
            fail("epoll_wait");
        }
        for (int at = 0; at < ready; at++) {
            int fd = events[at].data.fd;
            if (fd == listening) {
                welcome(epoll, listening, context);
            } else if (fd == control) {
                orders = accept4(control, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
                if (orders >= 0) {
                    watch(epoll, orders);
                }
            } else if (fd == orders) {
                ssize_t got = recv(fd, inbox + filled, INBOX_MAX - filled, 0);
                if (got == 0) {
                    return 0;
                }
                if (got > 0) {
                    filled += (size_t)got;
                    replay();
                }
            } else if (clients[fd].ssl != NULL) {
                advance(fd);
            }
        }
    }
}
