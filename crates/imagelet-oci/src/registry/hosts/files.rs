//! Reads files of the registry configuration, and says what is wrong with one.

use std::{
    collections::BTreeSet,
    io::ErrorKind,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use imagelet_core::{runtime::RuntimeError, trusted_files};

use crate::manifest::printable;

const FILE_BYTES_MAX: u64 = 1 << 20;
/// A file that changes often repeats its warnings then.
const WARNINGS_MAX: usize = 256;

pub(super) fn pem(path: &Path) -> Result<Arc<[u8]>, String> {
    read(path).map(Arc::from).map_err(|error| format!("`{}`: {error}", path.display()))
}

pub(super) fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    trusted_files::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(std::io::Error::new(ErrorKind::FileTooLarge, "larger than 1 MiB"));
    }
    Ok(bytes)
}

pub(super) fn utf8(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())
}

/// The parser's message with the line number, without quoted values: they may be secrets.
pub(super) fn toml_problem(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    let line = before.map(|before| format!("line {}: ", 1 + before.matches('\n').count())).unwrap_or_default();
    let words = match (error.message().split_once('"'), error.message().rsplit_once('"')) {
        (Some((before, _)), Some((_, after))) => format!("{before}…{after}"),
        _ => error.message().to_owned(),
    };
    printable(&format!("{line}{words}"))
}

/// A URL for a message, without passwords and signatures.
pub(super) fn shown(text: &str) -> String {
    let text = text.split('?').next().unwrap_or_default();
    let text = match (text.find("://"), text.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => format!("{}{}", &text[..scheme + 3], &text[at + 1..]),
        _ => text.to_owned(),
    };
    printable(&text)
}

/// Rejects a directory that other users can write to; an absent directory passes.
pub(super) fn check_folder(path: &Path) -> Result<(), RuntimeError> {
    match trusted_files::check_folder(path) {
        Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Err(complaint(path, &error.to_string()))
        }
        _ => Ok(()),
    }
}

pub(super) fn complaint(path: &Path, problem: &str) -> RuntimeError {
    let (problem, hint) =
        problem.split_once("\nhint: ").unwrap_or((problem, "mend the file, or remove it to ask the registry directly"));
    RuntimeError::other(format!("registry configuration `{}` cannot be used: {problem}", path.display()))
        .with_hint(hint)
}

/// Logs each warning once in the life of the process: the files are read again for each pull.
pub(super) fn warn_once(path: &Path, warnings: Vec<String>) {
    static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    for warning in warnings {
        let message = format!("registry configuration `{}`: {warning}", path.display());
        let mut warned = WARNED.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.len() >= WARNINGS_MAX {
            warned.clear();
        }
        if warned.insert(message.clone()) {
            tracing::warn!("{message}");
        }
    }
}

/// The bytes of a configured file; it and its folder decide which host receives credentials.
pub(super) fn check_file(path: &Path) -> Result<Vec<u8>, RuntimeError> {
    if let Some(folder) = path.parent() {
        check_folder(folder)?;
    }
    read(path).map_err(|error| complaint(path, &error.to_string()))
}
