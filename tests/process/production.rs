//! The section "In production" of the README: its configuration and its commands, with other addresses and folders.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    thread,
};

use crate::support::{Process, command, fresh_data};

const KID: &str = "2026";

fn page(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("a page")
}

/// Returns the code blocks of the section, of this language.
fn blocks(language: &str) -> Vec<String> {
    let readme = page("README.md");
    let (_, section) = readme.split_once("\n## In production\n").expect("the section");
    let section = section.split_once("\n## ").expect("a section after it").0;
    let fence = format!("```{language}\n");
    section
        .split(&fence)
        .skip(1)
        .map(|rest| rest.split_once("```").expect("the end of the block").0.to_owned())
        .collect()
}

fn run(folder: &Path, typed: &str) -> String {
    let mut shell = Command::new("sh");
    let path = format!(
        "{}:{}",
        Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().expect("a folder").display(),
        std::env::var("PATH").expect("a path")
    );
    shell.args(["-c", typed]).current_dir(folder).env("PATH", path).env_remove("TIDEGATE_CONFIG");
    let output = shell.output().expect("a shell");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{typed}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Serves this body to every request until the test ends, and returns the address.
fn serve_json(body: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            // The request is short and comes at once.
            drop(stream.read(&mut [0; 4_096]));
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.write_all(format!("{head}{body}").as_bytes()).ok();
        }
    });
    address
}

/// Client of OpenSSL, which trusts the authority of the test.
struct TlsClient {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl TlsClient {
    fn login(folder: &Path, address: SocketAddr, token: &str) -> Self {
        let mut client = Command::new("openssl");
        client.args(["s_client", "-quiet", "-verify_return_error", "-verify_hostname", "chat.example.org"]);
        client.args(["-CAfile", "ca.pem", "-connect", &address.to_string()]).current_dir(folder);
        client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = client.spawn().expect("openssl runs");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        let hello = format!(r#"{{"id":1,"hello":{{"version":1,"token":"{token}","device":"phone"}}}}"#);
        writeln!(child.stdin.as_mut().expect("piped"), "{hello}").expect("it takes the line");
        let mut client = Self { child, lines };
        client.line("welcome");
        client
    }

    /// Reads lines until one contains this text.
    fn line(&mut self, text: &str) -> String {
        loop {
            let mut line = String::new();
            let length = self.lines.read_line(&mut line).expect("text");
            assert!(length > 0, "the connection ended before {text}");
            if line.contains(text) {
                return line;
            }
        }
    }
}

impl Drop for TlsClient {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn section_in_production_gives_tls_tokens_keys_and_a_kick() {
    let data = fresh_data();
    fs::create_dir_all(&data).expect("a folder");
    let folder = fs::canonicalize(&data).expect("a folder");
    run(&folder, "tidegate cert --out . --file chat chat.example.org 127.0.0.1");
    run(&folder, "openssl genpkey -algorithm ed25519 -out issuer.pem && chmod 600 issuer.pem");
    // The last 32 bytes of an Ed25519 key's DER form are the key.
    let x = run(
        &folder,
        "openssl pkey -in issuer.pem -pubout -outform DER | tail -c 32 | base64 | tr '+/' '-_' | tr -d '='",
    );
    let key = format!(r#"{{"kty":"OKP","crv":"Ed25519","use":"sig","kid":"{KID}","x":"{}"}}"#, x.trim());
    let issuer = serve_json(format!(r#"{{"keys":[{key}]}}"#));

    let here = folder.display().to_string();
    let toml = blocks("toml").concat();
    let toml = toml.replace("/etc/tidegate", &here).replace("/var/lib/tidegate", &here);
    let toml = toml.replace("https://id.example.org", &format!("http://{issuer}"));
    fs::write(folder.join("node.toml"), toml).expect("the file is written");
    let shell = blocks("sh").concat();
    let typed = |word: &str| {
        let line = shell.lines().find(|line| line.starts_with(word)).unwrap_or_else(|| panic!("no {word}"));
        line.replace("/etc/tidegate", &here)
    };
    run(&folder, &typed("tidegate key add"));
    assert_eq!(typed("tidegate serve"), format!("tidegate serve --config {here}/node.toml"));
    // On loopback the port would know no name but its own.
    let mut serve = command(&folder, &["listen.admin=0.0.0.0:0"]);
    serve.arg("--config").arg(folder.join("node.toml"));
    let node = Process::spawn(&folder, serve);

    // As a page of the origin that is listed, and of another one.
    let upgrade = |origin: &str| {
        let port = node.address().port();
        let headers = "-H 'Connection: Upgrade' -H 'Upgrade: websocket' -H 'Sec-WebSocket-Version: 13' \
                       -H 'Sec-WebSocket-Key: x3JJHMbDL1EzLkh9GBhXDw=='";
        let curl = "curl -isN --http1.1 --max-time 1 --cacert ca.pem --resolve";
        run(
            &folder,
            &format!(
                "{curl} chat.example.org:{port}:127.0.0.1 {headers} -H 'Origin: {origin}' https://chat.example.org:{port}/ || true"
            ),
        )
    };
    assert!(upgrade("https://app.example.org").starts_with("HTTP/1.1 101"));
    assert!(upgrade("https://evil.example.org").starts_with("HTTP/1.1 403"));

    let mint = |user: &str| {
        run(&folder, &format!("tidegate token mint --key issuer.pem --kid {KID} --aud chat {user}"))
            .trim()
            .to_owned()
    };
    let (bob, mut carol) = (mint("bob"), TlsClient::login(&folder, node.address(), &mint("carol")));
    let mut bob = TlsClient::login(&folder, node.address(), &bob);
    let port = node.admin().port();
    let resolved = format!("--cacert ca.pem --resolve chat.example.org:{port}:127.0.0.1 -fsS");
    let health = page("docs/tls.md");
    let health = health.lines().find(|line| line.starts_with("curl ")).expect("a call over TLS");
    let health = health.replacen("curl --cacert ca.pem", &format!("curl {resolved}"), 1);
    run(&folder, &health.replace("n1.example.org:7801", &format!("chat.example.org:{port}")));
    let kick = typed("curl")
        .replacen("curl", &format!("curl {resolved}"), 1)
        .replace(":7801/", &format!(":{port}/"));
    assert_eq!(run(&folder, &kick).trim(), r#"{"closed":1,"silent":[]}"#);
    let close = bob.line("close");
    assert!(close.contains("KICKED") && close.contains("spam"), "{close}");
    writeln!(carol.child.stdin.as_mut().expect("piped"), r#"{{"id":2,"ping":{{}}}}"#)
        .expect("it takes the line");
    carol.line("pong");
}
