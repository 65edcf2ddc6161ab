// Strangers and misbehaving peers at a real daemon's TCP port; afterwards two daemons do an honest job.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <ucp/api/ucp.h>

#include <algorithm>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <fstream>
#include <random>

#include "daemon/control/peer_network.h"
#include "tests/control/good_job.h"

namespace gradwire::control::testing {
namespace {

using ::testing::HasSubstr;
using Tcp = asio::ip::tcp;
using std::chrono::milliseconds;
using std::chrono::seconds;

class HostilePeer : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(a_.ready()) << a_.log();
    ASSERT_TRUE(b_.ready()) << b_.log();
    honest_job();  // so that what a first job leaves open is there
    ASSERT_TRUE(eventually([this] {
      const size_t before = std::exchange(descriptors_, open_descriptors(a_.process.pid()));
      std::this_thread::sleep_for(milliseconds(300));
      return before == descriptors_;
    }));
  }
  void TearDown() override {
    honest_job();
    visitors_.clear();
    links_.clear();
    context_.restart();
    context_.run_for(milliseconds(50));
    EXPECT_TRUE(eventually([this] { return open_descriptors(a_.process.pid()) <= descriptors_; }))
        << open_descriptors(a_.process.pid()) << " descriptors are open, " << descriptors_
        << " were at first";
    EXPECT_FALSE(a_.process.wait(milliseconds(0))) << "the daemon has ended";
    if (HasFailure()) {
      std::fputs((a_.log() + "b:\n" + b_.log()).c_str(), stderr);
    }
  }

  void honest_job() {
    GoodJob job({a_.socket, b_.socket}, "127.0.0.1:" + std::to_string(a_.port),
                root_.path() + "/stop" + std::to_string(++jobs_));
    EXPECT_TRUE(job.advances());
    EXPECT_EQ(job.finish(), "");
  }

  Tcp::socket& visit() {
    Tcp::socket& socket = visitors_.emplace_back(context_);
    socket.connect({asio::ip::make_address("127.0.0.1"), a_.port});
    return socket;
  }
  static bool is_closed(Tcp::socket& socket) {
    socket.non_blocking(true);
    return eventually([&socket] {
      std::array<char, 4096> bytes;
      boost::system::error_code error;
      socket.read_some(asio::buffer(bytes), error);
      return error && error != asio::error::would_block;
    });
  }

  // A link whose key is proven, and what was heard on it.
  struct Heard {
    LinkPtr link;
    std::vector<Json> documents;
    bool closed = false;
    const Json* first(const std::string& type) const {
      const auto found =
          std::ranges::find_if(documents, [&](const Json& each) { return each["type"] == type; });
      return found == documents.end() ? nullptr : &*found;
    }
  };
  template <typename Condition>
  bool run_until(Condition condition, milliseconds limit = seconds(10)) {
    return eventually(
        [&] {
          context_.restart();
          context_.run_for(milliseconds(2));
          return condition();
        },
        limit);
  }
  Status try_key(const std::string& key, uint16_t port, std::shared_ptr<Heard> heard) {
    config::PeerOptions options;
    options.listen = "127.0.0.1";
    options.port = 0;
    options.key_file = root_.path() + "/key" + std::to_string(networks_.size());
    std::ofstream(options.key_file) << key << '\n';
    chmod(options.key_file.c_str(), 0600);
    networks_.push_back(std::make_unique<PeerNetwork>(context_, scheduler_, options));
    EXPECT_TRUE(networks_.back()->start([](const LinkPtr&) {}).ok());
    std::optional<Status> status;
    networks_.back()->connect("127.0.0.1:" + std::to_string(port), 0, [&](const Result<LinkPtr>& link) {
      status = link.status();
      if (link.ok()) {
        heard->link = *link;
        heard->link->start([heard](const Json& document) { heard->documents.push_back(document); },
                           [heard](const Status&) { heard->closed = true; });
      }
    });
    EXPECT_TRUE(run_until([&] { return status.has_value(); }));
    return status.value_or(Status(Code::kInternal, "no answer"));
  }
  std::shared_ptr<Heard> peer() {
    auto heard = std::make_shared<Heard>();
    const Status status = try_key(kKey, a_.port, heard);
    EXPECT_TRUE(status.ok()) << status.message();
    links_.push_back(heard->link);
    return heard;
  }
  Json hello(const std::string& node, char instance) const {
    NodeInfo info;
    info.name = node;
    info.instance = std::string(16, instance);
    info.version = GRADWIRE_VERSION;
    info.transport = std::string("ucx ") + ucp_get_version_string();
    info.transport = info.transport.substr(0, info.transport.find(' ', 4));
    info.transport_address = "nowhere";
    info.max_payload = 65536;
    info.peer_timeout_ms = 1000;
    info.operation_timeout_ms = 300'000;
    const JobIdentity job{getuid(), "hostile", "0"};
    return hello_document(info, &job);
  }

  static constexpr const char* kKey = "a key for one test on loopback";
  TemporaryDirectory root_;
  DaemonProcess a_{root_.path(), "a", {"peers.max_document=1MiB"}};
  DaemonProcess b_{root_.path(), "b", {"peers.max_document=1MiB"}};
  int jobs_ = 0;
  size_t descriptors_ = 0;
  asio::io_context context_;
  AsioScheduler scheduler_{context_};
  std::deque<Tcp::socket> visitors_;
  std::vector<std::unique_ptr<PeerNetwork>> networks_;
  std::vector<LinkPtr> links_;
};

TEST_F(HostilePeer, ThatIsSilentInACrowdKeepsNobodyOut) {
  for (int i = 0; i < 300; ++i) {
    Tcp::socket& socket = visit();
    if (i % 2 == 0) {
      asio::write(socket, asio::buffer(std::string("\x16\x03\x01\x02\x00\x01", 6)));
    }
  }
  honest_job();
  EXPECT_TRUE(is_closed(visitors_.front()));
  EXPECT_LT(open_descriptors(a_.process.pid()), descriptors_ + 40);
}

TEST_F(HostilePeer, ThatSpeaksSomethingElseIsClosedAndDoesNotFillTheLog) {
  std::mt19937 random(2);
  for (int i = 0; i < 100; ++i) {
    std::string words(1 + random() % 2000, '\0');
    for (char& byte : words) {
      byte = static_cast<char>(random());
    }
    words = i == 0 ? "GET / HTTP/1.1\r\n\r\n" : i % 2 == 0 ? words : "\x16\x03\x01" + words;
    boost::system::error_code closed_already;
    asio::write(visit(), asio::buffer(words), closed_already);
    visitors_.back().shutdown(Tcp::socket::shutdown_send, closed_already);
  }
  for (Tcp::socket& socket : visitors_) {
    EXPECT_TRUE(is_closed(socket));
  }
  for (int i = 0; i < 10; ++i) {
    auto heard = std::make_shared<Heard>();
    EXPECT_EQ(try_key("another key of sixteen bytes", a_.port, heard).code(), Code::kPermissionDenied);
  }
  const std::string log = a_.log();
  size_t lines = 0;
  for (size_t at = log.find("peer_refused"); at != std::string::npos; at = log.find("peer_refused", at + 1)) {
    ++lines;
  }
  EXPECT_GE(lines, 1u);
  EXPECT_LE(lines, 5u);
}

TEST_F(HostilePeer, ThatRepeatsARecordedConversationIsNobody) {
  // What a peer with the key sent through here is what a listener in the network has.
  Tcp::acceptor relay(context_, {asio::ip::make_address("127.0.0.1"), 0});
  Tcp::socket inside(context_), outside(context_);
  std::string recorded;
  std::array<char, 8192> up, down;
  std::function<void()> pump_up = [&] {
    inside.async_read_some(asio::buffer(up), [&](const boost::system::error_code& error, size_t bytes) {
      if (!error) {
        recorded.append(up.data(), bytes);
        asio::write(outside, asio::buffer(up.data(), bytes));
        pump_up();
      }
    });
  };
  std::function<void()> pump_down = [&] {
    outside.async_read_some(asio::buffer(down), [&](const boost::system::error_code& error, size_t bytes) {
      if (!error) {
        asio::write(inside, asio::buffer(down.data(), bytes));
        pump_down();
      }
    });
  };
  relay.async_accept(inside, [&](const boost::system::error_code&) {
    outside.connect({asio::ip::make_address("127.0.0.1"), a_.port});
    pump_up();
    pump_down();
  });
  auto heard = std::make_shared<Heard>();
  ASSERT_TRUE(try_key(kKey, relay.local_endpoint().port(), heard).ok());
  heard->link->send(hello("c", 'c'));
  ASSERT_TRUE(run_until([&] { return heard->first("hello") != nullptr; }));
  inside.close();
  outside.close();
  heard->link->close();
  const std::string before = a_.log();
  asio::write(visit(), asio::buffer(recorded));
  EXPECT_TRUE(is_closed(visitors_.back()));
  EXPECT_THAT(a_.log().substr(before.size()), HasSubstr("event=peer_refused source=127.0.0.1"));
}

TEST_F(HostilePeer, WithTheKeyIsRefusedWithASentence) {
  const auto unknown = peer();
  Json newer = hello("c", 'c');
  newer["protocol"] = 99;
  unknown->link->send(newer);
  const auto rude = peer();
  rude->link->send({{"type", "join"}, {"rank", 0}});
  const auto odd = peer();
  odd->link->send({{"type", "hello"}, {"protocol", kPeerProtocol}, {"node", 5}});
  const auto silent = peer();
  const auto long_winded = peer();
  long_winded->link->send({{"type", "hello"}, {"text", std::string(2 << 20, 'x')}});
  EXPECT_TRUE(run_until([&] { return unknown->closed && rude->closed && odd->closed; }));
  EXPECT_TRUE(run_until([&] { return long_winded->closed; }));
  ASSERT_NE(unknown->first("error"), nullptr);
  EXPECT_THAT((*unknown->first("error"))["message"].get<std::string>(), HasSubstr("peer protocol 99"));
  EXPECT_NE(rude->first("error"), nullptr);
  EXPECT_NE(odd->first("error"), nullptr);
  honest_job();
  EXPECT_TRUE(run_until([&] { return silent->closed; }, seconds(8)));  // it never said hello
}

TEST_F(HostilePeer, ThatComesTwiceReplacesItselfOnly) {
  const auto first = peer();
  first->link->send(hello("c", 'c'));
  ASSERT_TRUE(run_until([&] { return first->first("hello") != nullptr; }));
  const auto second = peer();
  second->link->send(hello("c", 'c'));
  EXPECT_TRUE(run_until([&] { return first->closed && second->first("hello") != nullptr; }));
  EXPECT_FALSE(second->closed);
  std::mt19937 random(3);
  const char* types[] = {"ready", "bucket_ready", "misses", "stall", "leave", "failed", "past", "nonsense"};
  for (const char* type : types) {
    const auto each = peer();
    each->link->send(hello("d", 'd'));
    each->link->send({{"type", type}, {"bucket", random()}, {"rank", -1}, {"query", "x"}});
    run_until([&] { return each->closed; }, milliseconds(100));
  }
}

}  // namespace
}  // namespace gradwire::control::testing
