//! `config check` and `config show`.

use std::{path::PathBuf, process::ExitCode};

use serde_json::json;

use crate::{
    cli::{ConfigCommand, Format, ServeArgs},
    config::{Environment, Sourced},
    failure::Failure,
    output::{Table, print},
    serve::sources,
};

pub(super) fn run(
    command: ConfigCommand,
    store: Option<&PathBuf>,
    environment: &Environment,
    format: Format,
) -> Result<ExitCode, Failure> {
    let (arguments, is_check) = match command {
        ConfigCommand::Check { file, kubelet_config } => {
            (ServeArgs { config: file, kubelet_config, ..ServeArgs::default() }, true)
        }
        ConfigCommand::Show(arguments) => (arguments, false),
    };
    let sources = sources(&arguments, store, environment)?;
    sources.settings().map_err(|error| Failure::of(&error).or_hint("docs/configuration.md lists all keys"))?;
    let effective = sources.effective().map_err(|error| Failure::of(&error))?;
    if is_check {
        let mut result = json!({ "valid": true });
        for (key, file) in [("file", &arguments.config), ("kubeletConfig", &arguments.kubelet_config)] {
            if let Some(file) = file {
                result[key] = json!(file);
            }
        }
        let files = [arguments.kubelet_config, arguments.config].into_iter().flatten();
        let files: Vec<String> = files.map(|file| file.display().to_string()).collect();
        let are = if files.len() == 1 { "is" } else { "are" };
        print(format, &result, |out| writeln!(out, "{} {are} valid", files.join(" and ")))?;
        return Ok(ExitCode::SUCCESS);
    }
    print(format, &document(&effective), |mut out| {
        let mut table = Table::new(["KEY", "VALUE", "SOURCE"]);
        for one in &effective {
            let value = one.value.as_str().map_or_else(|| one.value.to_string(), str::to_owned);
            table.row([one.key.clone(), if value.is_empty() { "-".into() } else { value }, one.source.to_string()]);
        }
        table.write(&mut out)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn document(effective: &[Sourced]) -> serde_json::Value {
    let settings: Vec<_> = effective
        .iter()
        .map(|one| json!({ "key": one.key, "value": one.value, "source": one.source.to_string() }))
        .collect();
    json!({ "settings": settings })
}
