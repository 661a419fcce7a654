//! Scopes of admin keys: what the holder of a key may do.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

macro_rules! scopes {
    ($($variant:ident $name:literal $what:literal)*) => {
        /// Right of a key.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum Scope {
            $(#[doc = $what] $variant,)*
        }

        impl Scope {
            /// All scopes.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the name in files, commands and answers.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Returns what the scope allows.
            pub const fn what(self) -> &'static str {
                match self { $(Self::$variant => $what,)* }
            }
        }
    };
}

scopes! {
    Read "read" "State without the content of messages: nodes, presence, events, groups and their members. Every other scope except `evidence` includes it."
    Content "content" "What people wrote: histories, newest messages, last entries of conversations."
    Messages "messages" "Messages: send them as any user or as the system, recall them, and remove histories; marks and preferences of users."
    Groups "groups" "Groups and their members: create, change, delete."
    Users "users" "Users: close their connections, revoke their tokens, change their block lists; tokens of a node for development."
    Operate "operate" "The node and the cluster: drain, weight, traces, settings; keys are listed and revoked."
    Evidence "evidence" "Reports of an edge gateway."
}

impl Scope {
    /// Returns whether the holder of this scope may do what `needed` allows.
    pub fn includes(self, needed: Self) -> bool {
        self == needed || (needed == Self::Read && self != Self::Evidence)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|scope| scope.name() == text).copied();
        found.ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|scope| scope.name()).collect();
            format!("no such scope; the scopes are {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scope_except_evidence_includes_read() {
        for scope in Scope::ALL {
            assert_eq!(scope.includes(Scope::Read), *scope != Scope::Evidence, "{scope}");
            for other in Scope::ALL.iter().filter(|other| **other != Scope::Read && *other != scope) {
                assert!(!scope.includes(*other), "{scope} and {other}");
            }
            assert_eq!(scope.name().parse(), Ok(*scope));
        }
        assert!("admin".parse::<Scope>().unwrap_err().contains("operate"));
    }
}
