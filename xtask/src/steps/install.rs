//! The step `tools`: installs the programs that the other steps need.

use crate::{
    services,
    shell::{self, Shell},
    tools,
};

/// Installs everything that a whole run needs, while the compiler is busy.
pub(crate) fn all(shell: &Shell) -> anyhow::Result<()> {
    tools::cargo_deny(shell)?;
    tools::ensure_program(shell, "valgrind", "valgrind")?;
    services::install(shell)?;
    tools::python(shell)?;
    tools::check_jsonschema(shell)?;
    tools::kubernetes(shell)?;
    tools::hadolint(shell)?;
    tools::schemathesis(shell)?;
    tools::buf(shell)?;
    tools::node(shell)?;
    tools::later_node(shell)?;
    tools::ensure_program(shell, "chromium-headless-shell", "chromium-headless-shell")?;
    tools::ensure_program(shell, "haproxy", "haproxy")?;
    tools::ensure_program(shell, "nginx", "nginx")?;
    tools::ensure_program(shell, "testssl", "testssl.sh")?;
    if !shell::have("kubectl") {
        tools::kustomize(shell)?;
    }
    tools::promtool(shell)?;
    Ok(())
}
