// TLS 1.3 with an external pre-shared key and nothing else: both sides prove that they have the key; there
// are no certificates and no tickets.
#pragma once

#include <utility>
// Asio needs <utility> first under g++ 12.
#include <boost/asio/ssl/context.hpp>
#include <cstddef>
#include <memory>
#include <span>

#include "config/base/result.h"

namespace gradwire::control {

struct TlsContexts {
  std::unique_ptr<boost::asio::ssl::context> server;
  std::unique_ptr<boost::asio::ssl::context> client;
};

// The key is not kept as it is: the contexts hold a SHA-256 over it.
Result<TlsContexts> make_tls_contexts(std::span<const std::byte> key);

}  // namespace gradwire::control
