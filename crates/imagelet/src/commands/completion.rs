//! Completion in a shell: the script to source, and the words that it asks for, names of images among them.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap_complete::{
    ArgValueCompleter, CompleteEnv, CompletionCandidate, Shell,
    env::{Elvish, EnvCompleter, Fish, Powershell, Zsh},
};
use imagelet_core::image::ImageId;

use super::target::find_node;
use crate::{
    api::{ImageRow, ListRequest, no_steps},
    cli::{Cli, Global, Intent, command},
    config::Environment,
    failure::Failure,
};

/// The variable by which the script asks for words.
const VARIABLE: &str = "IMAGELET_COMPLETE";
const PROGRAM: &str = "imagelet";
/// A daemon that takes longer gives no names: the shell waits.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// The arguments that take a name of a present image.
const NAME_ARGUMENTS: [&str; 2] = ["REF", "PATTERN"];

/// Bash splits words at `:` and `=`, which names of images and flags contain: the script asks with whole words, and
/// removes what Bash has in the line already.
const BASH: &str = r#"_imagelet() {
    local line="${COMP_LINE:0:COMP_POINT}" reply
    local -a words replies
    read -ra words <<< "$line"
    [[ "$line" == *[[:space:]] ]] && words+=("")
    local word="${words[${#words[@]}-1]}"
    local cut=$(( ${#word} - ${#2} ))
    (( cut < 0 )) && cut=0
    mapfile -t replies < <(IMAGELET_COMPLETE=bash _CLAP_IFS=$'\n' \
        _CLAP_COMPLETE_INDEX=$(( ${#words[@]} - 1 )) imagelet -- "${words[@]}" 2>/dev/null)
    COMPREPLY=()
    for reply in "${replies[@]}"; do
        [[ -n "$reply" ]] && COMPREPLY+=("${reply:cut}")
    done
    [[ "${COMPREPLY[0]-}" == *[=/:] ]] && compopt -o nospace
}
complete -o bashdefault -o default -F _imagelet imagelet
"#;

pub(super) fn script(shell: Shell) -> Result<Vec<u8>, Failure> {
    let adapter: &dyn EnvCompleter = match shell {
        Shell::Zsh => &Zsh,
        Shell::Fish => &Fish,
        Shell::Elvish => &Elvish,
        Shell::PowerShell => &Powershell,
        _ => return Ok(BASH.as_bytes().to_vec()),
    };
    let mut script = Vec::new();
    adapter.write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script)?;
    Ok(script)
}

/// Answers a completion script. `false`: no script asks. It fails for an unknown shell, or where stdout is closed.
pub(crate) fn complete_word(arguments: &[OsString]) -> Result<bool, Failure> {
    let global = target_of(arguments);
    let factory = || {
        let names = ArgValueCompleter::new({
            let global = global.clone();
            move |typed: &std::ffi::OsStr| candidates(&global, &typed.to_string_lossy())
        });
        let with_names = |argument: clap::Arg| {
            let is_name =
                argument.get_value_names().into_iter().flatten().any(|name| NAME_ARGUMENTS.contains(&name.as_str()));
            if is_name { argument.add(names.clone()) } else { argument }
        };
        command().mut_subcommands(|one| one.mut_args(with_names))
    };
    let environment = CompleteEnv::with_factory(factory).var(VARIABLE).bin(PROGRAM);
    let folder = std::env::current_dir().ok();
    environment.try_complete(arguments.iter().cloned(), folder.as_deref()).map_err(|error| Failure::of(&error))
}

/// The node that the line names so far; the rest of an unfinished line does not read.
fn target_of(arguments: &[OsString]) -> Global {
    let blank = Cli::read([PROGRAM, "version"]).map(|cli| cli.global);
    let mut global = blank.unwrap_or_else(|_| Global::default());
    let mut words = arguments.iter().map(|word| word.to_string_lossy());
    while let Some(word) = words.next() {
        let (flag, value) = match word.split_once('=') {
            Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
            None => (word.into_owned(), None),
        };
        match flag.as_str() {
            "--store" => {
                global.store = value.or_else(|| words.next().map(Into::into)).map(PathBuf::from);
                global.endpoint = None;
            }
            "--endpoint" => {
                global.endpoint = value.or_else(|| words.next().map(Into::into));
                global.store = None;
            }
            _ => {}
        }
    }
    Global { timeout: Some(ANSWER_MAX), lock_timeout: Some(Duration::ZERO), ..global }
}

/// The names of present images that continue a word. A node that does not answer has none.
fn candidates(global: &Global, typed: &str) -> Vec<CompletionCandidate> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let listed = runtime.map(|runtime| {
        runtime.block_on(async {
            let ask = async {
                let node = find_node(global, &Environment::of_process(), Intent::Looks).await?;
                node.ask(ListRequest { brief: true }, no_steps()).await
            };
            tokio::time::timeout(ANSWER_MAX, ask).await.ok().and_then(Result::ok)
        })
    });
    let images = listed.ok().flatten().map(|listed| listed.images).unwrap_or_default();
    words_for(&images, typed).into_iter().map(CompletionCandidate::new).collect()
}

/// The spellings of images that continue a word: names as stored, names without Docker Hub's host, ids where digits were
/// typed.
fn words_for(images: &[ImageRow], typed: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for image in images {
        for name in image.shown_names() {
            let short = name.strip_prefix("docker.io/").unwrap_or(name);
            let shortest = short.strip_prefix("library/").unwrap_or(short);
            let spelling = [shortest, short, name].into_iter().find(|spelling| spelling.starts_with(typed));
            words.extend(spelling.map(str::to_owned));
        }
        let id = ImageId::shorten(&image.id);
        if !typed.is_empty() && [id, image.id.as_str()].iter().any(|id| id.starts_with(typed)) {
            words.push(if id.starts_with(typed) { id.to_owned() } else { image.id.clone() });
        }
    }
    words.sort();
    words.dedup();
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_continued_by_names_and_ids_in_the_spelling_that_it_began() {
        let image = |names: &[&str], digit: &str| ImageRow {
            id: format!("sha256:{}", digit.repeat(64)),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            ..ImageRow::default()
        };
        let images = [
            image(&["docker.io/library/busybox:1.36"], "a"),
            image(&["docker.io/team/app:v1", "localhost:5000/busy:1"], "b"),
        ];
        let short = ImageId::shorten(&images[0].id).trim_start_matches("sha256:").to_owned();
        for (typed, words) in [
            ("bu", &["busybox:1.36"][..]),
            ("docker.io/l", &["docker.io/library/busybox:1.36"]),
            ("lib", &["library/busybox:1.36"]),
            ("localhost:5000/", &["localhost:5000/busy:1"]),
            ("team", &["team/app:v1"]),
            ("aa", &[short.as_str()]),
            ("", &["busybox:1.36", "localhost:5000/busy:1", "team/app:v1"]),
            ("x", &[]),
        ] {
            let found: Vec<String> = words_for(&images, typed)
                .into_iter()
                .map(|word| word.trim_start_matches("sha256:").to_owned())
                .collect();
            assert_eq!(found, words, "{typed}");
        }
    }

    #[test]
    fn the_node_of_an_unfinished_line_is_found() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        for (line, store, endpoint) in [
            ("imagelet -- imagelet --store /s rm ", Some("/s"), None),
            ("imagelet -- imagelet rm --endpoint=unix:///x ", None, Some("unix:///x")),
            ("imagelet -- imagelet rm ", None, None),
        ] {
            let global = target_of(&words(line));
            assert_eq!((global.store, global.endpoint.as_deref()), (store.map(PathBuf::from), endpoint), "{line}");
        }
    }
}
