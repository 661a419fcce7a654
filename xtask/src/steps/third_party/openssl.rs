//! `openssl s_client` against a node's own TLS: versions, resumption, ciphers, ALPN and names.

use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};

use crate::{server::ServerNode, services::certificate, shell::Shell};

/// Request that the node answers and closes: so the client stays until the tickets of TLS 1.3 have arrived.
const REQUEST: &[u8] = b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n";

const FIRST: &str = "first.example.org";
const SECOND: &str = "second.example.org";

/// Printed after a handshake with the first certificate, and with the second one.
const GOT_FIRST: &str = "subject=CN = first.example.org";
const GOT_SECOND: &str = "subject=CN = second.example.org";

/// Printed if the certificate is that of the wanted name; also without a handshake.
const VERIFIED: &str = "Verify return code: 0 (ok)";

/// Printed if the handshake ended before the certificate.
const REFUSED: &str = "no peer certificate available";

/// (description, arguments, what the client prints)
const CASES: &[(&str, &str, &[&str])] = &[
    ("TLS 1.3", "-tls1_3 -sess_out 1.3.ticket", &["New, TLSv1.3", GOT_FIRST, VERIFIED]),
    ("resumption of TLS 1.3", "-tls1_3 -sess_in 1.3.ticket", &["Reused, TLSv1.3"]),
    ("TLS 1.2", "-tls1_2 -sess_out 1.2.ticket", &["New, TLSv1.2", GOT_FIRST, VERIFIED]),
    ("resumption of TLS 1.2", "-tls1_2 -sess_in 1.2.ticket", &["Reused, TLSv1.2"]),
    // Which alert is left to the node: such a client also lacks the extensions of TLS 1.2.
    ("TLS 1.1", "-tls1_1 -cipher ALL:@SECLEVEL=0", &["SSL alert number", "Protocol  : TLSv1.1", REFUSED]),
    ("no common cipher", "-tls1_2 -cipher AES128-SHA:AES256-SHA", &["alert handshake failure", REFUSED]),
    ("ALPN tidegate/1", "-alpn h2,tidegate/1", &["ALPN protocol: tidegate/1", GOT_FIRST, VERIFIED]),
    ("ALPN http/1.1", "-alpn http/1.1", &["ALPN protocol: http/1.1", GOT_FIRST, VERIFIED]),
    ("ALPN h2 alone", "-alpn h2", &["alert no application protocol", REFUSED]),
    ("the first name", "-servername first.example.org", &[GOT_FIRST, VERIFIED]),
    ("the second name", "-servername second.example.org", &[GOT_SECOND, VERIFIED]),
    ("another name", "-servername other.example.org", &[GOT_FIRST, VERIFIED]),
];

/// Runs the cases, and returns their number.
pub(super) fn run(shell: &Shell, folder: &Path) -> anyhow::Result<usize> {
    certificate::make_authority(folder, None)?;
    certificate::sign(folder, None, FIRST, &format!("DNS:{FIRST}"), ["first.pem", "first.key"])?;
    certificate::sign(folder, None, SECOND, &format!("DNS:{SECOND}"), ["second.pem", "second.key"])?;
    let files = |ending: &str| {
        ["first", "second"]
            .map(|name| folder.join(format!("{name}.{ending}")).display().to_string())
            .join(",")
    };
    let settings = [
        format!("tls.cert_files=[{}]", files("pem")),
        format!("tls.key_files=[{}]", files("key")),
        "tls.required=true".to_owned(),
    ];
    let node = ServerNode::start_with(shell, &folder.join("tls-node"), &settings)?;
    for (what, words, expected) in CASES {
        let printed = connect(folder, &node.client, words)?;
        for text in *expected {
            ensure!(printed.contains(text), "{what}: `openssl s_client {words}` lacks {text:?}:\n{printed}");
        }
        println!("openssl s_client, {what}: ok");
    }
    node.stop()?;
    Ok(CASES.len())
}

/// Returns what `openssl s_client` prints; it may fail.
fn connect(folder: &Path, address: &str, words: &str) -> anyhow::Result<String> {
    let mut command = Command::new("openssl");
    command.current_dir(folder).args(["s_client", "-connect", address, "-CAfile", "ca.pem", "-ign_eof"]);
    command.args(words.split(' ')).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("starting openssl s_client")?;
    if let Some(mut input) = child.stdin.take() {
        // The client may have ended already, refused.
        drop(input.write_all(REQUEST));
    }
    let output = child.wait_with_output()?;
    Ok([output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat())
}
