//! Reads the hosts that serve a registry's content from the configuration, or the registry itself
//! (`docs/spec/pull.md §13.1`).
//!
//! ```text
//! DIRECTORY/     containerd's tree of HOST/hosts.toml
//! FILE.conf      registries.conf of containers/image
//! FILE.yaml      registries.yaml of k3s and RKE2
//! ```

mod certs_d;
mod files;
mod host;
mod registries_conf;
mod registries_yaml;

use std::{ffi::OsStr, path::PathBuf};

use imagelet_core::{
    image::Reference,
    runtime::{RuntimeError, RuntimeErrorKind},
};

pub(crate) use self::host::Host;

/// The hosts to try for an image, in order; the registry itself is the last. Reads files; the first source that knows
/// the registry decides.
pub(crate) fn load(sources: &[PathBuf], reference: &Reference) -> Result<Vec<Host>, RuntimeError> {
    let registry = reference.domain();
    for source in sources {
        let found = match source.extension().and_then(OsStr::to_str) {
            Some("conf") => registries_conf::load(source, reference)?,
            Some("yaml" | "yml") => registries_yaml::load(source, reference)?,
            _ => certs_d::load(source, registry)?,
        };
        if let Some(hosts) = found {
            return Ok(hosts);
        }
    }
    let own = Host::own(registry).map_err(|problem| RuntimeError::new(RuntimeErrorKind::InvalidArgument, problem))?;
    Ok(vec![own])
}

/// What the text of a file with this extension says, without other files.
#[cfg(feature = "fuzzing")]
pub(crate) fn of_text(text: &str, extension: &str, reference: &Reference) -> Result<Option<Vec<Host>>, String> {
    let folder = std::path::Path::new("/nonexistent");
    match extension {
        "conf" => registries_conf::parse(&text.split("# drop-in").collect::<Vec<_>>(), reference),
        "yaml" => registries_yaml::File::parse(text)?.hosts(reference, folder),
        _ => certs_d::parse(text.as_bytes(), reference.domain(), folder).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../../../docs/registries.md");

    #[test]
    fn each_example_of_the_documentation_is_read_whole() {
        let reference: Reference = "docker.io/team/app:v1".parse().unwrap();
        let examples = ["```toml\n", "```yaml\nmirrors:"].into_iter().flat_map(|fence| PAGE.split(fence).skip(1));
        let examples = examples.map(|rest| rest.split("```").next().unwrap());
        let mut hosts_found = Vec::new();
        for example in examples {
            let folder = tempfile::tempdir().unwrap();
            let source = if example.contains("[[registry]]") {
                assert_eq!(registries_conf::warnings(example), Vec::<String>::new());
                let file = folder.path().join("registries.conf");
                std::fs::write(&file, example).unwrap();
                file
            } else if example.contains("configs:") {
                let file = folder.path().join("registries.yaml");
                std::fs::write(folder.path().join("corp-ca.crt"), "").unwrap();
                let text = example.replace("/etc/ssl", folder.path().to_str().unwrap());
                std::fs::write(&file, format!("mirrors:{text}")).unwrap();
                file
            } else {
                assert_eq!(certs_d::warnings(example), Vec::<String>::new());
                let own = folder.path().join("docker.io");
                std::fs::create_dir(&own).unwrap();
                std::fs::write(own.join("corp-ca.crt"), "").unwrap();
                std::fs::write(own.join("hosts.toml"), example).unwrap();
                folder.path().to_owned()
            };
            let hosts = load(&[source], &reference).expect(example);
            assert_eq!(
                hosts.last().map(|host| host.origin.to_string()).as_deref(),
                Some("https://registry-1.docker.io")
            );
            hosts_found.extend(hosts.into_iter().filter(|host| host.is_mirror));
        }
        assert_eq!(hosts_found.len(), 6, "one mirror per example");
    }
}
