//! The platform of an image: operating system, architecture and variant.

use std::{fmt, str::FromStr};

use crate::text::PlainError;

/// `OS/ARCHITECTURE[/VARIANT]` in Go's words, as in image indexes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Platform {
    pub os: String,
    pub architecture: String,
    /// For example `v8`. `None`: the default variant of the architecture.
    pub variant: Option<String>,
}

impl Platform {
    pub fn host() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self { os: "linux".into(), architecture: architecture.into(), variant: None }
    }
}

impl FromStr for Platform {
    type Err = PlainError;
    fn from_str(text: &str) -> Result<Self, PlainError> {
        let parts: Vec<&str> = text.split('/').collect();
        let plain = |part: &&str| {
            !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        };
        if !(2..=3).contains(&parts.len()) || !parts.iter().all(plain) {
            return Err(PlainError(format!("`{text}` is not OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT")));
        }
        Ok(Self {
            os: parts[0].to_owned(),
            architecture: parts[1].to_owned(),
            variant: parts.get(2).map(|variant| (*variant).to_owned()),
        })
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.as_ref().map_or(Ok(()), |variant| write!(f, "/{variant}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_platform_reads_back_what_it_printed_and_refuses_the_rest() {
        for text in ["linux/amd64", "linux/arm64/v8"] {
            assert_eq!(text.parse::<Platform>().map(|platform| platform.to_string()).as_deref(), Ok(text));
        }
        for text in ["linux", "linux/", "/amd64", "a/b/c/d", "li nux/amd64"] {
            assert!(text.parse::<Platform>().is_err(), "{text}");
        }
    }
}
