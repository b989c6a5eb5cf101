// What other ways than Flight take to carry a body between two processes: CPU seconds of both ends per GB, over loopback.
//
//   cc -O2 -o wire_bound benchmarks/wire_bound.c -lfabric -lssl -lcrypto       # libfabric-dev, libssl-dev
//   ./wire_bound fabric PROVIDER MB COUNT           PROVIDER: "tcp;ofi_rxm", tcp or shm (fi_info -l lists those of a host)
//   ./wire_bound tls FOLDER MB COUNT [READ_AHEAD]   FOLDER: ca.pem, node.pem and node.key of `glt-lightning certs`
//
// The receiver asks for each body of MB by one byte, and waits without spinning. The first body warms and is not counted.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void die(const char* what) {
  fprintf(stderr, "%s failed\n", what);
  exit(1);
}
#define OK(call) ((call) ? (void)0 : die(#call))

typedef void Move(char* bytes, size_t n);  // carries all n bytes

static double cpu_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

static double exchange(int sends, size_t n, int count, Move* send, Move* receive) {
  char *body = malloc(n), byte = 0;
  memset(body, 1, n);
  double begin = 0;
  for (int k = 0; k <= count; ++k) {
    if (k == 1) begin = cpu_s();
    (sends ? receive : send)(&byte, 1);
    (sends ? send : receive)(body, n);
  }
  return cpu_s() - begin;
}

// -- libfabric

static struct fid_ep* endpoint;
static struct fid_cq* queue;
static fi_addr_t peer;

static void complete(void) {
  struct fi_cq_msg_entry entry;
  ssize_t found;
  while ((found = fi_cq_sread(queue, &entry, 1, NULL, 100)) == -FI_EAGAIN) continue;
  OK(found == 1);
}

static void fabric_send(char* bytes, size_t n) {
  while (fi_send(endpoint, bytes, n, NULL, peer, NULL) == -FI_EAGAIN) fi_cq_read(queue, NULL, 0);
  complete();
}

static void fabric_receive(char* bytes, size_t n) {
  OK(fi_recv(endpoint, bytes, n, NULL, FI_ADDR_UNSPEC, NULL) == 0);
  complete();
}

static void open_fabric(const char* provider, int out, int in) {
  struct fi_info *hints = fi_allocinfo(), *info;
  struct fid_fabric* fabric;
  struct fid_domain* domain;
  struct fid_av* addresses;
  struct fi_cq_attr of_queue = {.format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_UNSPEC, .size = 128};
  struct fi_av_attr of_addresses = {.type = FI_AV_TABLE};
  char mine[256] = {0}, theirs[256];
  size_t length = sizeof mine;
  const int tcp = strstr(provider, "tcp") != NULL;
  hints->caps = FI_MSG;
  hints->ep_attr->type = FI_EP_RDM;
  hints->fabric_attr->prov_name = strdup(provider);
  OK(fi_getinfo(FI_VERSION(1, 17), tcp ? "127.0.0.1" : NULL, NULL, tcp ? FI_SOURCE : 0, hints, &info) == 0);
  OK(fi_fabric(info->fabric_attr, &fabric, NULL) == 0);
  OK(fi_domain(fabric, info, &domain, NULL) == 0);
  OK(fi_cq_open(domain, &of_queue, &queue, NULL) == 0);
  OK(fi_av_open(domain, &of_addresses, &addresses, NULL) == 0);
  OK(fi_endpoint(domain, info, &endpoint, NULL) == 0);
  OK(fi_ep_bind(endpoint, &addresses->fid, 0) == 0);
  OK(fi_ep_bind(endpoint, &queue->fid, FI_TRANSMIT | FI_RECV) == 0);
  OK(fi_enable(endpoint) == 0);
  OK(fi_getname(&endpoint->fid, mine, &length) == 0);
  OK(write(out, mine, sizeof mine) == sizeof mine && read(in, theirs, sizeof theirs) == sizeof theirs);
  OK(fi_av_insert(addresses, theirs, 1, &peer, 0, NULL) == 1);
}

// -- OpenSSL

static SSL* session;

static void tls_send(char* bytes, size_t n) {
  for (size_t done = 0, some; done < n; done += some)
    OK(SSL_write_ex(session, bytes + done, n - done < 1 << 20 ? n - done : 1 << 20, &some) == 1);
}

static void tls_receive(char* bytes, size_t n) {
  for (size_t done = 0, some; done < n; done += some) OK(SSL_read_ex(session, bytes + done, n - done, &some) == 1);
}

static void open_tls(const char* folder, long read_ahead, int sends, int listening, struct sockaddr_in at) {
  char path[3][4096];
  const char* names[] = {"ca.pem", "node.pem", "node.key"};
  const int plain = sends ? accept(listening, NULL, NULL) : socket(AF_INET, SOCK_STREAM, 0), one = 1;
  OK(sends || connect(plain, (struct sockaddr*)&at, sizeof at) == 0);
  setsockopt(plain, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  SSL_CTX* context = SSL_CTX_new(TLS_method());
  for (int k = 0; k < 3; ++k) snprintf(path[k], sizeof path[k], "%s/%s", folder, names[k]);
  OK(SSL_CTX_load_verify_locations(context, path[0], NULL) == 1);
  OK(SSL_CTX_use_certificate_chain_file(context, path[1]) == 1);
  OK(SSL_CTX_use_PrivateKey_file(context, path[2], SSL_FILETYPE_PEM) == 1);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
  if (read_ahead) {
    SSL_CTX_set_read_ahead(context, 1);
    SSL_CTX_set_default_read_buffer_len(context, read_ahead);
  }
  session = SSL_new(context);
  SSL_set_fd(session, plain);
  OK((sends ? SSL_accept(session) : SSL_connect(session)) == 1);
}

int main(int argc, char** argv) {
  if (argc < 5) die("usage: wire_bound fabric|tls PROVIDER|FOLDER MB COUNT [READ_AHEAD];");
  const int tls = strcmp(argv[1], "tls") == 0, count = atoi(argv[4]);
  const size_t n = (size_t)(atof(argv[3]) * 1e6);
  int to_parent[2], to_child[2];
  OK(pipe(to_parent) == 0 && pipe(to_child) == 0);
  const int listening = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t length = sizeof at;
  OK(bind(listening, (struct sockaddr*)&at, length) == 0 && listen(listening, 1) == 0);
  OK(getsockname(listening, (struct sockaddr*)&at, &length) == 0);
  const int sends = fork() == 0, out = sends ? to_parent[1] : to_child[1], in = sends ? to_child[0] : to_parent[0];
  if (tls) open_tls(argv[2], argc > 5 ? atol(argv[5]) : 0, sends, listening, at);
  else open_fabric(argv[2], out, in);
  const double mine = exchange(sends, n, count, tls ? tls_send : fabric_send, tls ? tls_receive : fabric_receive);
  if (sends) {
    OK(write(out, &mine, sizeof mine) == sizeof mine);
    _exit(0);
  }
  double theirs;
  OK(read(in, &theirs, sizeof theirs) == sizeof theirs);
  wait(NULL);
  const double gb = 1e-9 * n * count;
  printf("{\"bench\": \"wire_bound\", \"way\": \"%s\", \"cpu_s_per_gb\": %.3f, \"receiver\": %.3f, \"sender\": %.3f}\n",
         tls ? SSL_get_cipher(session) : argv[2], (mine + theirs) / gb, mine / gb, theirs / gb);
}
