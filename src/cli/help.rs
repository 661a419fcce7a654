//! `tidegate errors` and `tidegate completions`: help that needs no node.

use anyhow::{Context as _, Result};
use clap::Command;
use clap_complete::Shell;
use serde_json::{Value, json};
use tidegate_protocol::Code;

use super::admin::table;

/// Arguments of `tidegate errors`.
#[derive(clap::Args, Debug)]
pub struct ErrorsArgs {
    /// Number or name of a code, such as 4005 or NOT_FOUND; without it, all codes are listed
    code: Option<String>,
    /// Print JSON, one object for each code
    #[arg(long)]
    json: bool,
}

/// Arguments of `tidegate completions`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLE)]
pub struct CompletionsArgs {
    /// Shell that reads them
    shell: Shell,
}

const EXAMPLE: &str = "\
Example:
  source <(tidegate completions bash)";

/// Explains a code, or lists all of them.
///
/// # Errors
/// There is no such code.
pub fn errors(args: &ErrorsArgs) -> Result<()> {
    let found = match &args.code {
        Some(text) => {
            let unknown = || format!("there is no code {text:?}: `tidegate errors` lists all of them");
            vec![Code::named(text).with_context(unknown)?]
        }
        None => Code::ALL.to_vec(),
    };
    if args.json {
        found.iter().for_each(|code| println!("{}", described(*code)));
    } else if let ([code], true) = (found.as_slice(), args.code.is_some()) {
        print!("{}", explained(*code));
    } else {
        let mut rows = vec![["CODE", "NAME", "AGAIN", "MEANING"].map(String::from)];
        rows.extend(found.iter().map(|code| {
            let again = if code.temporary() { "later" } else { "no" };
            [code.number().to_string(), code.name().to_owned(), again.to_owned(), code.what().to_owned()]
        }));
        print!("{}", table(&rows));
    }
    Ok(())
}

fn described(code: Code) -> Value {
    json!({"code": code.number(), "name": code.name(), "temporary": code.temporary(), "what": code.what(),
        "cure": code.cure()})
}

fn explained(code: Code) -> String {
    let again = if code.temporary() { "may succeed" } else { "can't succeed" };
    let (number, name, what, cure) = (code.number(), code.name(), code.what(), code.cure());
    format!("{number} {name}\n\n{what}\n{cure}\nThe same request {again} later.\n")
}

/// Prints the completions of a shell for the commands.
pub fn completions(args: &CompletionsArgs, mut commands: Command) {
    // `generate` itself panics when nobody reads the output to its end.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut commands, "tidegate", &mut script);
    print!("{}", String::from_utf8_lossy(&script));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_explained_with_its_cure() {
        let text = explained(Code::NotFound);
        let parts = ["NOT_FOUND", Code::NotFound.what(), Code::NotFound.cure(), "can't succeed later"];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        assert_eq!(described(Code::Busy)["temporary"], true);
        let unknown = errors(&ErrorsArgs { code: Some("9".to_owned()), json: false });
        assert!(unknown.is_err_and(|error| error.to_string().contains("lists all of them")));
    }
}
