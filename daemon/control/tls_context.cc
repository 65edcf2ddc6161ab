#include "daemon/control/tls_context.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>

#include <array>
#include <cstring>
#include <string_view>

namespace gradwire::control {
namespace {

constexpr std::string_view kIdentity = "gradwire-1";
constexpr std::string_view kKeyLabel = "gradwire peer key 1";
constexpr unsigned char kAes128GcmSha256[2] = {0x13, 0x01};

struct Secret {
  std::array<unsigned char, 32> bytes{};
  ~Secret() { OPENSSL_cleanse(bytes.data(), bytes.size()); }
};

void free_secret(void*, void* secret, CRYPTO_EX_DATA*, int, long, void*) {
  delete static_cast<Secret*>(secret);
}

int secret_index() {
  static const int index = SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, free_secret);
  return index;
}

SSL_SESSION* make_session(SSL* ssl) {
  const auto* secret = static_cast<const Secret*>(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), secret_index()));
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kAes128GcmSha256);
  SSL_SESSION* session = SSL_SESSION_new();
  if (secret == nullptr || cipher == nullptr || session == nullptr ||
      SSL_SESSION_set1_master_key(session, secret->bytes.data(), secret->bytes.size()) != 1 ||
      SSL_SESSION_set_cipher(session, cipher) != 1 ||
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1) {
    SSL_SESSION_free(session);
    return nullptr;
  }
  return session;
}

int use_session(SSL* ssl, const EVP_MD* digest, const unsigned char** identity, size_t* identity_bytes,
                SSL_SESSION** session) {
  *session = nullptr;
  SSL_SESSION* made = make_session(ssl);
  if (made == nullptr) {
    return 0;
  }
  if (digest != nullptr && SSL_CIPHER_get_handshake_digest(SSL_SESSION_get0_cipher(made)) != digest) {
    SSL_SESSION_free(made);  // a second ClientHello with another hash: the key does not fit
    return 1;
  }
  *session = made;
  *identity = reinterpret_cast<const unsigned char*>(kIdentity.data());
  *identity_bytes = kIdentity.size();
  return 1;
}

int find_session(SSL* ssl, const unsigned char* identity, size_t identity_bytes, SSL_SESSION** session) {
  *session = nullptr;
  if (identity_bytes != kIdentity.size() ||
      CRYPTO_memcmp(identity, kIdentity.data(), kIdentity.size()) != 0) {
    return 1;  // unknown: the handshake goes on without it, and fails for lack of a certificate
  }
  *session = make_session(ssl);
  return *session != nullptr ? 1 : 0;
}

bool derive(std::span<const std::byte> key, Secret* secret) {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  unsigned bytes = 0;
  const bool ok = context != nullptr && EVP_DigestInit_ex(context, EVP_sha256(), nullptr) == 1 &&
                  EVP_DigestUpdate(context, kKeyLabel.data(), kKeyLabel.size()) == 1 &&
                  EVP_DigestUpdate(context, key.data(), key.size()) == 1 &&
                  EVP_DigestFinal_ex(context, secret->bytes.data(), &bytes) == 1 &&
                  bytes == secret->bytes.size();
  EVP_MD_CTX_free(context);
  return ok;
}

bool configure(SSL_CTX* context, std::span<const std::byte> key) {
  auto secret = std::make_unique<Secret>();
  if (!derive(key, secret.get()) || SSL_CTX_set_ex_data(context, secret_index(), secret.get()) != 1) {
    return false;
  }
  [[maybe_unused]] Secret* const owned_by_context = secret.release();  // free_secret
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  return SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
         SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") == 1 &&
         SSL_CTX_set_num_tickets(context, 0) == 1;
}

}  // namespace

Result<TlsContexts> make_tls_contexts(std::span<const std::byte> key) {
  namespace ssl = boost::asio::ssl;
  try {
    TlsContexts contexts;
    contexts.server = std::make_unique<ssl::context>(ssl::context::tlsv13_server);
    contexts.client = std::make_unique<ssl::context>(ssl::context::tlsv13_client);
    SSL_CTX* server = contexts.server->native_handle();
    SSL_CTX* client = contexts.client->native_handle();
    if (!configure(server, key) || !configure(client, key)) {
      return Status(Code::kInternal, "OpenSSL refuses TLS 1.3 with a pre-shared key");
    }
    SSL_CTX_set_psk_find_session_callback(server, find_session);
    SSL_CTX_set_psk_use_session_callback(client, use_session);
    // A server that does not know the key would have to show a certificate, and no authority is trusted.
    SSL_CTX_set_verify(client, SSL_VERIFY_PEER, nullptr);
    return contexts;
  } catch (const std::exception& error) {
    return Status(Code::kInternal, std::string("OpenSSL cannot be set up: ") + error.what());
  }
}

}  // namespace gradwire::control
