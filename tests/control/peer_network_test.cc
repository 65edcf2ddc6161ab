// TLS links over real loopback sockets: the right key, wrong keys, and visitors that are not peers.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <algorithm>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "daemon/control/large_documents.h"
#include "daemon/control/liveness.h"
#include "daemon/control/peer_network.h"
#include "tests/control/runtime_directory.h"

namespace gradwire::control {
namespace {

using ::testing::HasSubstr;
using Tcp = asio::ip::tcp;
using std::chrono::milliseconds;

class Peers : public Runtime {
 protected:
  std::unique_ptr<PeerNetwork> network(const std::string& key, const std::string& listen = "127.0.0.1",
                                       uint64_t max_document = 1 << 20, Resolver::Lookup lookup = nullptr) {
    config::PeerOptions options;
    options.listen = listen;
    options.port = 0;
    options.max_document = max_document;
    if (!key.empty()) {
      options.key_file = directory_ + "/key-" + std::to_string(++files_);
      std::ofstream(options.key_file) << key << "\n";
      chmod(options.key_file.c_str(), 0600);
    }
    auto made = std::make_unique<PeerNetwork>(context_, scheduler_, options, std::move(lookup));
    const Status status = made->start([this](LinkPtr link) {
      link->start([this](const Json& document) { received_.push_back(document); },
                  [this](const Status& why) { closed_.push_back(why); });
      accepted_.push_back(link);
    });
    EXPECT_TRUE(status.ok()) << status.message();
    return made;
  }

  template <typename Condition>
  bool run_until(Condition condition, Nanoseconds limit = std::chrono::seconds(20)) {
    const Nanoseconds end = scheduler_.now() + limit;
    while (!condition() && scheduler_.now() < end) {
      context_.restart();
      context_.run_for(milliseconds(5));
    }
    return condition();
  }

  Result<LinkPtr> connect(PeerNetwork& from, const std::string& rendezvous) {
    std::optional<Result<LinkPtr>> answer;
    from.connect(rendezvous, 7, [&answer](const Result<LinkPtr>& link) { answer = link; });
    EXPECT_TRUE(run_until([&] { return answer.has_value(); }));
    return answer ? *answer : Result<LinkPtr>(Status(Code::kInternal, "no answer"));
  }

  static std::string at(const PeerNetwork& network) { return "127.0.0.1:" + std::to_string(network.port()); }

  Tcp::socket visit(const PeerNetwork& network) {
    Tcp::socket socket(context_);
    socket.connect({asio::ip::make_address("127.0.0.1"), network.port()});
    return socket;
  }
  // True once the other side has closed the connection.
  bool is_refused(Tcp::socket& socket, Nanoseconds limit = std::chrono::seconds(20)) {
    socket.non_blocking(true);
    return run_until(
        [&socket] {
          char byte;
          boost::system::error_code error;
          socket.read_some(asio::buffer(&byte, 1), error);
          return error && error != asio::error::would_block;
        },
        limit);
  }

  const std::string key_ = "a key of at least sixteen bytes";
  int files_ = 0;
  asio::io_context context_;
  AsioScheduler scheduler_{context_};
  std::vector<LinkPtr> accepted_;
  std::vector<Json> received_;
  std::vector<Status> closed_;
};

TEST_F(Peers, WithTheSameKeyExchangeDocumentsOfAnySizeBothWays) {
  const auto server = network(key_);
  const auto client = network(key_);
  const auto link = connect(*client, at(*server));
  ASSERT_TRUE(link.ok()) << link.status().message();
  std::vector<Json> answers;
  (*link)->start([&](const Json& document) { answers.push_back(document); }, [](const Status&) {});
  const std::string big(900'000, 'x');
  (*link)->send({{"type", "first"}, {"text", big}});
  (*link)->send({{"type", "second"}});
  ASSERT_TRUE(run_until([&] { return received_.size() == 2; }));
  EXPECT_EQ(received_[0]["text"], big);
  accepted_[0]->send({{"type", "answer"}});
  accepted_[0]->close();  // what was sent still arrives
  EXPECT_TRUE(run_until([&] { return answers.size() == 1; }));
  (*link)->close();
}

TEST_F(Peers, TheEndOfOneSideIsToldToTheOther) {
  const auto server = network(key_);
  const auto client = network(key_);
  auto link = connect(*client, at(*server));
  ASSERT_TRUE(link.ok());
  (*link)->start([](const Json&) {}, [](const Status&) {});
  ASSERT_TRUE(run_until([&] { return accepted_.size() == 1; }));
  (*link)->close();
  ASSERT_TRUE(run_until([&] { return closed_.size() == 1; }));
  EXPECT_EQ(closed_[0].code(), Code::kUnavailable);
}

TEST_F(Peers, WithAnotherKeyAreRefusedOnBothSides) {
  const auto server = network(key_);
  const auto client = network("another key of sixteen bytes");
  const auto link = connect(*client, at(*server));
  ASSERT_FALSE(link.ok());
  EXPECT_EQ(link.status().code(), Code::kPermissionDenied) << link.status().message();
  EXPECT_THAT(link.status().message(), HasSubstr("peers.key_file"));
  EXPECT_TRUE(accepted_.empty());
  // The others are not disturbed.
  const auto friendly = network(key_);
  EXPECT_TRUE(connect(*friendly, at(*server)).ok());
}

TEST_F(Peers, VisitorsThatSpeakSomethingElseAreClosed) {
  const auto server = network(key_);
  size_t wrong_keys = 0;
  server->on_wrong_key([&](const std::string&, const std::string&) { ++wrong_keys; });
  for (const std::string& words :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("CONNECT a:1 HTTP/1.1\r\n\r\n"),
        std::string("SSH-2.0-OpenSSH_9.2\r\n"), std::string(4096, '\xff'), std::string(100, '\0')}) {
    ::testing::internal::CaptureStdout();
    Tcp::socket socket = visit(*server);
    asio::write(socket, asio::buffer(words));
    EXPECT_TRUE(is_refused(socket));
    const std::string log = ::testing::internal::GetCapturedStdout();
    EXPECT_THAT(log, HasSubstr("does not speak TLS")) << words.substr(0, 20);
  }
  EXPECT_EQ(wrong_keys, 0U);
  // And from the other side: a rendezvous that is something else's port.
  Tcp::acceptor other(context_, {asio::ip::make_address("127.0.0.1"), 0});
  Tcp::socket held(context_);
  other.async_accept([&held](const boost::system::error_code&, Tcp::socket socket) {
    boost::system::error_code ignored;
    asio::write(socket, asio::buffer("SSH-2.0-OpenSSH_9.2\r\n", 21), ignored);
    held = std::move(socket);
  });
  const auto client = network(key_);
  const auto link = connect(*client, "127.0.0.1:" + std::to_string(other.local_endpoint().port()));
  EXPECT_THAT(link.status().message(), HasSubstr("does not speak TLS"));
  EXPECT_TRUE(accepted_.empty());
}

TEST_F(Peers, VisitorsThatSendByteByByteAreClosedAfterFiveSeconds) {
  const auto server = network(key_);
  Tcp::socket slow = visit(*server);
  Tcp::socket silent = visit(*server);
  const std::string hello("\x16\x03\x01\x02\x00\x01", 6);
  asio::write(slow, asio::buffer(hello));
  const Nanoseconds start = scheduler_.now();
  EXPECT_TRUE(is_refused(slow));
  EXPECT_TRUE(is_refused(silent));
  EXPECT_GE(scheduler_.now() - start, milliseconds(4500));
}

TEST_F(Peers, ACrowdOfSilentVisitorsKeepsNobodyOut) {
  const auto server = network(key_);
  const auto client = network(key_);
  std::vector<Tcp::socket> crowd;
  for (int i = 0; i < 200; ++i) {
    crowd.push_back(visit(*server));
  }
  const auto link = connect(*client, at(*server));
  ASSERT_TRUE(link.ok()) << link.status().message();
  EXPECT_TRUE(run_until([&] { return accepted_.size() == 1; }));
  EXPECT_LE(server->greetings(), kMaxGreetingsPerSource);
  EXPECT_TRUE(is_refused(crowd.front(), milliseconds(100)));
}

TEST_F(Peers, DocumentsOverTheLimitCloseTheLink) {
  const auto server = network(key_, "127.0.0.1", 1000);
  const auto client = network(key_);
  const auto link = connect(*client, at(*server));
  ASSERT_TRUE(link.ok());
  (*link)->start([](const Json&) {}, [](const Status&) {});
  (*link)->send({{"type", "x"}, {"text", std::string(2000, 'x')}});
  ASSERT_TRUE(run_until([&] { return closed_.size() == 1; }));
  EXPECT_EQ(closed_[0].code(), Code::kCorrupt);
  EXPECT_TRUE(received_.empty());
}

TEST_F(Peers, WhoseLargeDocumentsComeTogetherLetWhatIsReadyInBetween) {
  const auto server = network(key_);
  asio::io_context theirs;  // of the clients, so that all is sent before anything is read
  AsioScheduler their_scheduler(theirs);
  config::PeerOptions options;
  options.listen = "127.0.0.1";
  options.port = 0;
  options.key_file = directory_ + "/key-1";
  PeerNetwork client(theirs, their_scheduler, options);
  ASSERT_TRUE(client.start([](const LinkPtr&) {}).ok());
  constexpr size_t kLinks = 8;
  std::vector<LinkPtr> links;
  for (size_t i = 0; i < kLinks; ++i) {
    client.connect(at(*server), 7, [&](const Result<LinkPtr>& link) { links.push_back(*link); });
  }
  ASSERT_TRUE(run_until([&] {
    theirs.poll();
    return links.size() == kLinks && accepted_.size() == kLinks;
  }));
  for (const LinkPtr& link : links) {
    link->start([](const Json&) {}, [](const Status&) {});
    link->send({{"type", "large"}, {"text", std::string(30'000, 'x')}});
    link->send({{"type", "small"}});
  }
  theirs.run_for(milliseconds(100));
  size_t seen = 0;
  size_t most = 0;  // large documents between one look at what is ready and the next
  asio::steady_timer timer(context_);
  std::function<void(const boost::system::error_code&)> look = [&](const boost::system::error_code& error) {
    if (!error) {
      const auto large =
          static_cast<size_t>(std::count_if(received_.begin(), received_.end(), [](const Json& document) {
            return document["type"] == "large";
          }));
      most = std::max(most, large - std::exchange(seen, large));
      timer.expires_after(milliseconds(0));
      timer.async_wait(look);
    }
  };
  look({});
  EXPECT_TRUE(run_until([&] { return seen == kLinks && received_.size() == 2 * kLinks; }));
  EXPECT_LE(most, 2U);
  timer.cancel();
  run_until([] { return false; }, milliseconds(10));
}

// Nothing is sent, nothing comes; perhaps something waits.
class QuietLink final : public Link {
 public:
  void start(OnDocument, OnClosed) override {}
  void send(const Json&) override {}
  void close() override {}
  std::string peer() const override { return "a test"; }
  bool waits() const override { return waits_; }
  bool waits_ = true;
};

TEST_F(Peers, WhoseDocumentsWaitForTheirTurnAreNotSilent) {
  const auto link = std::make_shared<QuietLink>();
  bool silent = false;
  Liveness liveness(scheduler_, link, milliseconds(80), [&](const Status&) { silent = true; });
  EXPECT_FALSE(run_until([&] { return silent; }, milliseconds(300)));
  link->waits_ = false;
  EXPECT_TRUE(run_until([&] { return silent; }));
}

TEST_F(Peers, AServerWithoutTheKeyIsNotBelieved) {
  // It takes the connection, and then knows nothing to say.
  Tcp::acceptor impostor(context_, {asio::ip::make_address("127.0.0.1"), 0});
  std::vector<Tcp::socket> visitors;
  impostor.async_accept([&](const boost::system::error_code&, Tcp::socket socket) {
    boost::system::error_code error;
    asio::write(socket, asio::buffer(std::string("HTTP/1.1 200 OK\r\n\r\n")), error);
    visitors.push_back(std::move(socket));
  });
  const auto client = network(key_);
  const auto link = connect(*client, "127.0.0.1:" + std::to_string(impostor.local_endpoint().port()));
  EXPECT_FALSE(link.ok());
}

TEST_F(Peers, OneselfIsReachedInsideTheProcess) {
  const auto self = network(key_);
  for (const std::string& rendezvous : {std::string(), std::string("127.0.0.1"), at(*self)}) {
    const size_t before = accepted_.size();
    const auto link = connect(*self, rendezvous);
    ASSERT_TRUE(link.ok());
    EXPECT_EQ((*link)->peer(), "this daemon");
    EXPECT_EQ(accepted_.size(), before + 1);
  }
}

TEST_F(Peers, WithoutAKeyOnlyJobsOfThisNodeWork) {
  const auto server = network(key_);
  const auto alone = network("");
  EXPECT_TRUE(connect(*alone, "").ok());
  const auto link = connect(*alone, "203.0.113.1:7470");  // a documentation address: nobody's
  EXPECT_EQ(link.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(link.status().message(), HasSubstr("peers.key_file"));
}

TEST_F(Peers, AnUnreachableRendezvousMayBeTriedAgain) {
  const auto client = network(key_);
  Tcp::acceptor closed(context_, {asio::ip::make_address("127.0.0.1"), 0});
  const uint16_t port = closed.local_endpoint().port();
  closed.close();
  EXPECT_EQ(connect(*client, "127.0.0.1:" + std::to_string(port)).status().code(), Code::kUnavailable);
}

TEST(Rendezvous, HasAHostAndMayHaveAPort) {
  EXPECT_EQ(parse_rendezvous("host")->port, 0);
  EXPECT_EQ(parse_rendezvous("host:80")->port, 80);
  EXPECT_EQ(parse_rendezvous("[::1]:80")->host, "::1");
  EXPECT_EQ(parse_rendezvous("[::1]")->port, 0);
  EXPECT_EQ(parse_rendezvous("fe80::1")->host, "fe80::1");
  for (const char* bad : {"", ":80", "host:", "host:0", "host:65536", "host:8x", "[::1", "[::1]x", "[]:1"}) {
    EXPECT_FALSE(parse_rendezvous(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace gradwire::control
