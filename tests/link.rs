//! The link over gRPC beyond its contract: authentication, and the effect of one bad peer on the others.
#![allow(clippy::unwrap_used)]

#[path = "link/newer_calls.rs"]
mod newer_calls;
#[allow(dead_code, unreachable_pub, reason = "other test binaries use the rest of it, and hand it on")]
#[path = "support/port.rs"]
mod port;
#[allow(dead_code, unreachable_pub, reason = "other test binaries use the rest of it")]
#[path = "golden/link/raw.rs"]
mod raw;
#[path = "link/strangers.rs"]
mod strangers;
#[allow(dead_code, unreachable_pub, reason = "other test binaries use the rest of it, and hand it on")]
#[path = "support/time.rs"]
mod time;
#[path = "link/tls.rs"]
mod tls;
#[allow(unreachable_pub, reason = "other test binaries hand it on")]
#[path = "support/unique.rs"]
mod unique;

use std::{
    env, fs, io,
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::join_all;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use tidegate::{
    link::{
        Answer, AnswerStatus, ArchiveStatus, ArchivedUpTo, Ask, BestEffortMessage, GrpcLink, Landing, Link,
        LinkError, LinkFiles, Listener, PeerPush, PublishedMark, RoutedSession, Secret, Settings, Tls,
    },
    metrics,
    routes::NodeBoot,
    trace::{Facts, Step, TraceEvent, TraceFilter},
};
use tidegate_protocol::{id::NodeId, machine::ledger::Outcome};
use tokio::{
    net::{TcpSocket, TcpStream},
    sync::Semaphore,
};
use unique::unique_name;

/// Far above any duration here; nothing is timed.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// End that counts its answers, and does nothing else; answers wait while the gate is set.
#[derive(Default)]
struct End {
    answers: AtomicUsize,
    gate: Option<Arc<Semaphore>>,
}

#[async_trait]
impl Link for End {
    async fn answers(&self, _: &NodeBoot, answers: Vec<Answer>) -> Result<(), LinkError> {
        self.answers.fetch_add(answers.len(), Ordering::SeqCst);
        if let Some(gate) = &self.gate {
            drop(gate.acquire().await);
        }
        Ok(())
    }

    async fn deliver(&self, _: &NodeBoot, _: Vec<PeerPush>) -> Result<Vec<Vec<Landing>>, LinkError> {
        // Fewer landings than pushes, which no correct end returns.
        Ok(Vec::new())
    }

    async fn stop_sessions(&self, _: &NodeBoot, _: Vec<RoutedSession>) -> Result<Vec<bool>, LinkError> {
        std::future::pending().await
    }

    async fn archive_status(
        &self,
        _: &NodeBoot,
        _: Vec<PublishedMark>,
        _: Duration,
    ) -> Result<ArchiveStatus, LinkError> {
        Ok(ArchiveStatus::ArchivedUpTo(ArchivedUpTo::default()))
    }

    async fn traces(&self, _: &NodeBoot, _: TraceFilter) -> Result<Vec<TraceEvent>, LinkError> {
        Ok(vec![TraceEvent::new(1, 1, Step::Received, Facts::default(), &"x".repeat(33 << 20))])
    }

    async fn answers_again(
        &self,
        _: &NodeBoot,
        _: &NodeBoot,
        asks: Vec<Ask>,
    ) -> Result<Vec<AnswerStatus>, LinkError> {
        Ok(vec![AnswerStatus::NotYet; asks.len()])
    }

    async fn send_best_effort(&self, _: &NodeBoot, _: Vec<BestEffortMessage>) -> Result<(), LinkError> {
        Ok(())
    }
}

fn node(text: &str, boot: u64) -> NodeBoot {
    NodeBoot { node: NodeId::new(text).unwrap(), boot }
}

fn open() -> Settings {
    Settings { secret: None, tls: None, queue_bytes: 1 << 20, timeout: CALL_TIMEOUT, handshake: CALL_TIMEOUT }
}

fn knowing(secret: &str) -> Settings {
    Settings { secret: Some(Secret::new(secret.as_bytes()).unwrap()), ..open() }
}

fn with(tls: Tls) -> Settings {
    Settings { tls: Some(tls), ..open() }
}

fn listen_at(at: SocketAddr, me: NodeBoot, end: &Arc<End>, settings: Settings) -> Listener {
    let end: Arc<dyn Link> = end.clone();
    Listener::bind(at, me, end, settings, metrics::install().0).unwrap()
}

fn listen(me: NodeBoot, end: &Arc<End>, settings: Settings) -> Listener {
    listen_at(([127, 0, 0, 1], 0).into(), me, end, settings)
}

/// Returns an address that stays reserved for this test, with or without a listener.
fn own_address() -> SocketAddr {
    ([127, 0, 0, 1], port::free_port()).into()
}

fn caller(settings: Settings, peers: &[(NodeBoot, SocketAddr)]) -> GrpcLink {
    let link = GrpcLink::new(node("here", 1), settings, 9, metrics::install().0);
    link.set_peers(peers.iter().map(|(peer, address)| (peer.clone(), address.to_string())).collect());
    link
}

fn answer() -> Vec<Answer> {
    vec![Answer { conn: 1, request: 1, outcome: Outcome::Noted, traceparent: String::new() }]
}

async fn call(link: &GrpcLink, to: &NodeBoot) -> Result<(), LinkError> {
    tokio::time::timeout(CALL_TIMEOUT, link.answers(to, answer())).await.expect("every call ends")
}

async fn eventually(what: &str, mut look: impl AsyncFnMut() -> bool) {
    let looking = time::eventually_async(CALL_TIMEOUT, what, async || look().await.then_some(()));
    // A poll may hang, too.
    tokio::time::timeout(CALL_TIMEOUT * 2, looking).await.unwrap_or_else(|_| panic!("{what}"));
}

/// Authority with certificates for this machine.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Returns a certificate for that host, and its key.
    fn pem(&self, host: &str) -> [String; 2] {
        self.pem_for(host, &[])
    }

    /// Returns a certificate for that host with these extended key usages, and its key.
    fn pem_for(&self, host: &str, usages: &[ExtendedKeyUsagePurpose]) -> [String; 2] {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.extended_key_usages = usages.to_vec();
        [params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem()]
    }

    /// Returns TLS settings for that host, for peers with certificates of `trusted`.
    fn node(&self, host: &str, trusted: &Self) -> Tls {
        opened(&self.pem(host), &trusted.0.pem()).unwrap()
    }
}

/// Writes a certificate, its key and an authority to a folder. Each file is replaced at once.
fn write(folder: &Path, pair: &[String; 2], authority: &str) -> LinkFiles {
    let write = |name: &str, text: &str| {
        let (new, file) = (folder.join("new"), folder.join(name));
        fs::write(&new, text).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(new, &file).unwrap();
        file
    };
    LinkFiles {
        certificate: write("node.pem", &pair[0]),
        key: write("node.key", &pair[1]),
        authority: write("ca.pem", authority),
    }
}

/// Returns a new folder.
fn fresh_folder() -> PathBuf {
    let folder = env::temp_dir().join(format!("tidegate-link-{}", unique_name()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Returns the TLS settings that a certificate, its key and an authority make.
fn opened(pair: &[String; 2], authority: &str) -> anyhow::Result<Tls> {
    let folder = fresh_folder();
    let tls = Tls::open(write(&folder, pair, authority));
    fs::remove_dir_all(folder).unwrap();
    tls
}

#[tokio::test]
async fn both_sides_must_know_the_secret() {
    for (there, here, says) in [
        (knowing("the right one, here"), knowing("the wrong one, here"), "shared secret"),
        (knowing("the right one, here"), open(), "shared secret"),
        (open(), knowing("the right one, here"), "shared secret"),
    ] {
        let (end, peer) = (Arc::new(End::default()), node("there", 1));
        let listener = listen(peer.clone(), &end, there);
        let link = caller(here, &[(peer.clone(), listener.address())]);
        let Err(LinkError::Unavailable(why)) = call(&link, &peer).await else {
            panic!("the caller was accepted")
        };
        assert!(why.contains(says) && why.contains("link.secret_file"), "{why}");
        assert!(!why.contains("right") && !why.contains("wrong"), "{why}");
        assert_eq!(end.answers.load(Ordering::SeqCst), 0);
    }
}

#[tokio::test]
async fn certificates_of_one_authority_authenticate() {
    let (ours, end, peer) = (Authority::new(), Arc::new(End::default()), node("there", 1));
    let both =
        Settings { secret: knowing("a secret on top of it").secret, ..with(ours.node("127.0.0.1", &ours)) };
    let listener = listen(peer.clone(), &end, both.clone());
    let link = caller(both, &[(peer.clone(), listener.address())]);
    assert_eq!(call(&link, &peer).await, Ok(()));
    assert_eq!(end.answers.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn certificates_of_another_authority_or_host_are_refused() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let local = "127.0.0.1";
    for (there, here) in [
        // The caller's certificate is foreign, then the peer's is, then it is for another host.
        (with(ours.node(local, &ours)), with(theirs.node(local, &ours))),
        (with(theirs.node(local, &ours)), with(ours.node(local, &ours))),
        (with(ours.node("n1.example", &ours)), with(ours.node(local, &ours))),
        (with(ours.node(local, &ours)), open()),
        (open(), with(ours.node(local, &ours))),
    ] {
        let (end, peer) = (Arc::new(End::default()), node("there", 1));
        let listener = listen(peer.clone(), &end, there);
        let link = caller(here, &[(peer.clone(), listener.address())]);
        let reply = call(&link, &peer).await;
        assert!(matches!(reply, Err(LinkError::Unavailable(_))), "{reply:?}");
        assert_eq!(end.answers.load(Ordering::SeqCst), 0);
    }
}

#[tokio::test]
async fn x20_certificates_for_a_shared_name_authenticate_at_any_address() {
    let (ours, local) = (Authority::new(), "127.0.0.1");
    let named = |host: &str| with(ours.node(host, &ours).with_name("nodes.example").unwrap());
    for (host, is_accepted) in [("nodes.example", true), (local, false)] {
        let (end, peer) = (Arc::new(End::default()), node("there", 1));
        let listener = listen(peer.clone(), &end, named(host));
        let link = caller(named("nodes.example"), &[(peer.clone(), listener.address())]);
        let reply = call(&link, &peer).await;
        assert_eq!(reply.is_ok(), is_accepted, "{host}: {reply:?}");
    }
}

#[test]
fn unusable_certificate_is_refused_before_anything_listens() {
    let refused = opened(&["none", "none"].map(str::to_owned), "none").unwrap_err();
    assert!(format!("{refused:#}").contains("link.tls_cert"), "{refused:#}");
}

#[tokio::test]
async fn s5_restarted_peer_is_not_the_run_that_was_called() {
    let end = Arc::new(End::default());
    let (old, new) = (node("there", 1), node("there", 2));
    let at = own_address();
    let first = listen_at(at, old.clone(), &end, open());
    let link = caller(open(), &[(old.clone(), at)]);
    assert_eq!(call(&link, &old).await, Ok(()));
    drop(first);
    eventually("the link notices that its peer left", async || call(&link, &old).await.is_err()).await;
    eventually("the port is free again", async || std::net::TcpListener::bind(at).is_ok()).await;
    let _second = listen_at(at, new.clone(), &end, open());
    eventually("the old run is known to have ended", async || {
        call(&link, &old).await == Err(LinkError::NotHere)
    })
    .await;
    let before = end.answers.load(Ordering::SeqCst);
    link.set_peers(vec![(old.clone(), at.to_string()), (new.clone(), at.to_string())]);
    assert_eq!(call(&link, &new).await, Ok(()));
    assert_eq!(call(&link, &old).await, Err(LinkError::NotHere));
    assert_eq!(end.answers.load(Ordering::SeqCst), before + 1);
}

#[tokio::test]
async fn unavailable_peer_is_found_again() {
    let (end, peer) = (Arc::new(End::default()), node("there", 1));
    let at = own_address();
    let first = listen_at(at, peer.clone(), &end, open());
    let link = caller(open(), &[(peer.clone(), at)]);
    assert_eq!(call(&link, &peer).await, Ok(()));
    drop(first);
    eventually("the link notices that its peer left", async || call(&link, &peer).await.is_err()).await;
    eventually("the port is free again", async || std::net::TcpListener::bind(at).is_ok()).await;
    let _second = listen_at(at, peer.clone(), &end, open());
    eventually("the link works again", async || call(&link, &peer).await.is_ok()).await;
}

#[tokio::test]
async fn address_of_another_node_or_of_none_is_no_peer() {
    let end = Arc::new(End::default());
    let listener = listen(node("other", 1), &end, open());
    let nobody = own_address();
    let (taken, free, unknown) = (node("there", 1), node("free", 1), node("unknown", 1));
    let link = caller(open(), &[(taken.clone(), listener.address()), (free.clone(), nobody)]);
    for (peer, says) in [(taken, "other"), (free, "refused"), (unknown, "not among the peers")] {
        // The peers may come back: nothing shows that this run of theirs has ended.
        let Err(LinkError::Unavailable(why)) = call(&link, &peer).await else {
            panic!("{} is there", peer.node)
        };
        assert!(why.contains(says), "{why}");
    }
}

/// Connects from an address of this machine other than the usual one.
async fn connect_from(from: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

/// Whether the other side has closed the stream, after any output.
fn is_closed(stream: &TcpStream) -> bool {
    let mut said = [0; 64];
    loop {
        match stream.try_read(&mut said) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
        }
    }
}

/// Three peers that accept nothing: one whose shards are stuck, one that never reads its socket, one that does not
/// exist.
#[tokio::test]
async fn stuck_peer_gets_no_more_calls_and_delays_no_other() {
    let gate = Arc::new(Semaphore::new(0));
    let (well, stuck) = (Arc::new(End::default()), Arc::new(End { gate: Some(gate), ..End::default() }));
    let names = ["well", "stuck", "silent"].map(|name| node(name, 1));
    let (one, two) = (listen(names[0].clone(), &well, open()), listen(names[1].clone(), &stuck, open()));
    // The kernel accepts; no process reads.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = [one.address(), two.address(), silent.local_addr().unwrap()];
    let peers: Vec<_> = names.iter().cloned().zip(addresses).collect();
    let link = Arc::new(caller(Settings { queue_bytes: 1 << 20, ..open() }, &peers));
    let large: Vec<Answer> = (0..1_000).flat_map(|_| answer()).collect();
    let mut waiting = Vec::new();
    for peer in &names[1..] {
        let mut full = None;
        // 1,000 answers are approximately 10 KB: the bound comes long before the last.
        for _ in 0..1_000 {
            let (link, peer, large) = (Arc::clone(&link), peer.clone(), large.clone());
            let call = tokio::spawn(async move { link.answers(&peer, large).await });
            tokio::task::yield_now().await;
            if call.is_finished() {
                full = Some(call.await.unwrap());
                break;
            }
            waiting.push(call);
        }
        let Some(Err(LinkError::Unavailable(why))) = full else { panic!("no bound: {full:?}") };
        assert!(why.contains("full"), "{why}");
    }
    assert!(
        metrics::install()
            .1
            .render()
            .lines()
            .any(|line| { line.strip_prefix("tidegate_link_full_total ").is_some_and(|count| count != "0") })
    );
    let calls = (0..200).map(|_| call(&link, &names[0]));
    assert_eq!(join_all(calls).await, vec![Ok(()); 200]);
    assert_eq!(well.answers.load(Ordering::SeqCst), 200);
    assert!(waiting.iter().all(|call| !call.is_finished()), "calls to the other peers wait all the time");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn call_without_reply_is_unknown_and_unsent_call_is_not_done() {
    let (end, peer, silent) = (Arc::new(End::default()), node("there", 1), node("silent", 1));
    let listener = listen(peer.clone(), &end, open());
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let short = Settings { timeout: Duration::from_millis(200), ..open() };
    let peers = [(peer.clone(), listener.address()), (silent.clone(), socket.local_addr().unwrap())];
    let link = caller(short, &peers);
    let ask = || vec![Ask { partition: 0, offset: 0, conn: 0, request: 0, key: None }];
    eventually("the link is connected", async || {
        link.answers_again(&node("here", 1), &peer, ask()).await.is_ok()
    })
    .await;
    let session = || {
        let user = tidegate_protocol::id::UserId::new("ann").unwrap();
        vec![RoutedSession { user, device: tidegate_protocol::id::DeviceId::new("phone").unwrap(), epoch: 1 }]
    };
    let reply = link.stop_sessions(&peer, session()).await;
    assert!(matches!(reply, Err(LinkError::Unknown(_))), "{reply:?}");
    let reply = link.stop_sessions(&silent, session()).await;
    assert!(matches!(reply, Err(LinkError::Unavailable(_))), "{reply:?}");
}

#[tokio::test]
async fn replies_that_fit_no_call_are_rejected() {
    let (end, peer) = (Arc::new(End::default()), node("there", 1));
    let listener = listen(peer.clone(), &end, open());
    let link = caller(open(), &[(peer.clone(), listener.address())]);
    let push = || PeerPush {
        push: "p".into(),
        to: Vec::new(),
        tracked: false,
        sent_by: None,
        traceparent: String::new(),
    };
    let reply = link.deliver(&peer, vec![push()]).await;
    assert!(matches!(reply, Err(LinkError::Unknown(_))), "{reply:?}");
    let reply = link.traces(&peer, TraceFilter::default()).await;
    assert!(matches!(&reply, Err(LinkError::Unknown(why)) if why.contains("too large")), "{reply:?}");
    // Neither reply ended the connection.
    assert_eq!(call(&link, &peer).await, Ok(()));
    let huge = PeerPush { push: vec![0; 33 << 20].into(), ..push() };
    let reply = link.deliver(&peer, vec![huge]).await;
    assert!(matches!(&reply, Err(LinkError::Unavailable(why)) if why.contains("too large")), "{reply:?}");
    assert_eq!(call(&link, &peer).await, Ok(()));
}
