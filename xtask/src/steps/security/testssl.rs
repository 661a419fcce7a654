//! Verdict of testssl.sh on a port.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use super::Extent;

/// Checks of the short form, which take a few seconds.
const SHORT: &[&str] = &["--protocols", "--renegotiation", "--compression"];

/// Severities that fail the run.
const BAD: [&str; 4] = ["LOW", "MEDIUM", "HIGH", "CRITICAL"];

/// Findings that don't concern a node: what a public authority adds to its certificates, fields of web pages, limits of
/// the program itself, and an order of suites. All suites of a node are strong, so clients choose the one that is fast for
/// them.
const UNRELATED: &[&str] = &[
    "DNS_CAArecord",
    "HSTS",
    "OCSP_stapling",
    "cert_crlDistributionPoints",
    "cert_extlifeSpan",
    "cert_ocspURL",
    "cert_revocation",
    "cipher_order",
    "engine_problem",
    "scanProblem",
    "security_headers",
];

/// Findings without which the program has checked nothing.
const EXPECTED: [(&str, &str); 4] =
    [("SSLv3", "OK"), ("TLS1_2", "OK"), ("TLS1_3", "OK"), ("secure_client_renego", "OK")];

/// Runs the program against an address on this machine, and returns the number of findings.
pub(super) fn run(address: &str, authority: &Path, report: &Path, extent: Extent) -> anyhow::Result<usize> {
    let port = address.rsplit_once(':').context("an address has a port")?.1;
    let mut command = Command::new("testssl");
    command.args(["--quiet", "--color", "0", "--warnings", "batch", "--ip", "127.0.0.1"]);
    command.arg("--add-ca").arg(authority).arg("--jsonfile").arg(report);
    if extent == Extent::Short {
        command.args(SHORT);
    }
    let name = format!("localhost:{port}");
    // Its exit code counts findings; the report says which.
    let output = command.arg(&name).output().context("starting testssl")?;
    let text = fs::read_to_string(report)
        .with_context(|| format!("testssl wrote no report: {}", String::from_utf8_lossy(&output.stdout)))?;
    let findings = judge(&text)?;
    println!("testssl.sh, {name}: {findings} findings, none bad");
    Ok(findings)
}

/// Returns the number of findings of a report; fails if one of them is bad, or none shows that a handshake took place.
fn judge(report: &str) -> anyhow::Result<usize> {
    let findings: Vec<Value> = serde_json::from_str(report).context("the report of testssl is JSON")?;
    let field = |finding: &Value, name: &str| finding[name].as_str().unwrap_or_default().to_owned();
    let mut bad = Vec::new();
    for finding in &findings {
        let (id, severity) = (field(finding, "id"), field(finding, "severity"));
        if BAD.contains(&severity.as_str()) && !UNRELATED.iter().any(|it| id.starts_with(it)) {
            bad.push(format!("{severity} {id}: {}", field(finding, "finding")));
        }
    }
    if !bad.is_empty() {
        bail!("testssl.sh found:\n  {}", bad.join("\n  "));
    }
    for (id, severity) in EXPECTED {
        let is_it = |finding: &Value| field(finding, "id") == id && field(finding, "severity") == severity;
        ensure!(findings.iter().any(is_it), "testssl.sh did not check {id}: its report is no verdict");
    }
    Ok(findings.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(extra: &[(&str, &str)]) -> String {
        let all = EXPECTED.iter().chain(extra);
        let row = |(id, severity): &(&str, &str)| serde_json::json!({"id": id, "severity": severity, "finding": "text"});
        Value::Array(all.map(row).collect()).to_string()
    }

    #[test]
    fn a_report_is_bad_by_severity_and_no_verdict_without_a_handshake() {
        assert_eq!(judge(&report(&[("TLS1", "INFO"), ("OCSP_stapling", "LOW")])).expect("clean"), 6);
        let error = judge(&report(&[("TLS1", "LOW")])).expect_err("an old version").to_string();
        assert!(error.contains("LOW TLS1: text"), "{error}");
        let error = judge("[]").expect_err("nothing was checked").to_string();
        assert!(error.contains("did not check SSLv3"), "{error}");
        assert!(judge("no JSON").is_err());
    }
}
