//! Source of a setting: the file, or an environment variable that overrides it.
//!
//! Only the variables of [`OVERRIDES`] are read. Others that begin with `HOLDFAST_` are ignored, because
//! Kubernetes itself sets such variables (`HOLDFAST_OPERATOR_SERVICE_HOST`) for a Service of that name.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::ConfigError;

/// The type an overridden setting has in the file.
#[derive(Clone, Copy, Debug)]
pub(super) enum SettingType {
    Text,
    Number,
    Switch,
}

/// Environment variables and the settings they override.
pub(super) const OVERRIDES: [(&str, &str, SettingType); 16] = [
    ("HOLDFAST_KUBERNETES", "kubernetes", SettingType::Switch),
    ("HOLDFAST_NODE_NAME", "node.name", SettingType::Text),
    ("HOLDFAST_STATE_DIR", "node.state_dir", SettingType::Text),
    ("HOLDFAST_RUN_DIR", "node.run_dir", SettingType::Text),
    ("HOLDFAST_RING_THREADS", "data.ring_threads", SettingType::Number),
    ("HOLDFAST_TRANSPORT", "data.transport", SettingType::Text),
    ("HOLDFAST_SLAB_SIZE", "data.slab_size", SettingType::Text),
    ("HOLDFAST_CACHE_SIZE", "data.cache_size", SettingType::Text),
    ("HOLDFAST_SEAL_SIZE", "data.seal_size", SettingType::Text),
    ("HOLDFAST_MAX_DIRTY", "data.max_dirty", SettingType::Text),
    ("HOLDFAST_UPLOAD_MEMORY", "data.upload_memory", SettingType::Text),
    ("HOLDFAST_MEMORY_VOLUMES", "data.memory_volumes", SettingType::Text),
    ("HOLDFAST_MEMORY_SPILL", "data.memory_spill", SettingType::Text),
    ("HOLDFAST_MAX_DIRTY_AGE", "data.max_dirty_age", SettingType::Text),
    ("HOLDFAST_API_SOCKET", "api.socket", SettingType::Text),
    ("HOLDFAST_METRICS_LISTEN", "metrics.listen", SettingType::Text),
];

/// The configuration before validation of its values.
#[derive(Debug)]
pub(crate) struct ConfigSource {
    path: PathBuf,
    text: String,
    table: Table,
    overridden: Vec<(&'static str, &'static str)>,
}

/// Location of a setting, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SettingPlace {
    /// A line of the file.
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1; `None` if the setting is not in the file.
        line: Option<usize>,
        /// The setting, as `section.key`; empty for the file as a whole.
        key: String,
    },
    /// An environment variable.
    Variable(&'static str),
}

impl fmt::Display for SettingPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(name) => write!(f, "environment variable {name}"),
            Self::Line { path, line, key } => {
                write!(f, "{}", path.display())?;
                if let Some(line) = line {
                    write!(f, ":{line}")?;
                }
                if key.is_empty() { Ok(()) } else { write!(f, ": {key}") }
            }
        }
    }
}

impl ConfigSource {
    /// Parses `text`, the content of `path`, and applies the overrides from the environment.
    ///
    /// # Errors
    /// A line that is not TOML, or a variable that is empty or has the wrong type.
    pub(crate) fn parse(
        path: &Path,
        text: String,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let table = text.parse::<Table>().map_err(|error| ConfigError::Value {
            place: SettingPlace::Line {
                path: path.to_owned(),
                line: error.span().map(|span| line_of(&text, &span)),
                key: String::new(),
            },
            problem: format!("{}; the file may be cut off or mistyped here", error.message()),
        })?;
        let mut source = Self { path: path.to_owned(), text, table, overridden: Vec::new() };
        for (name, key, kind) in OVERRIDES {
            if let Some(value) = variable(name) {
                source.set(name, key, kind, &value)?;
            }
        }
        Ok(source)
    }

    fn set(
        &mut self,
        name: &'static str,
        key: &'static str,
        kind: SettingType,
        value: &str,
    ) -> Result<(), ConfigError> {
        let wrong =
            |problem: String| Err(ConfigError::Value { place: SettingPlace::Variable(name), problem });
        if value.is_empty() {
            return wrong(format!("is set but empty; unset it, or give it a value for {key}"));
        }
        let value = match kind {
            SettingType::Text => Value::String(value.to_owned()),
            SettingType::Number => match value.parse() {
                Ok(number) => Value::Integer(number),
                Err(error) => return wrong(format!("`{value}` is not a whole number ({error})")),
            },
            SettingType::Switch => match value {
                "true" => Value::Boolean(true),
                "false" => Value::Boolean(false),
                other => return wrong(format!("`{other}` is not `true` or `false`; write one of them")),
            },
        };
        let mut table = &mut self.table;
        let (sections, last) =
            key.rsplit_once('.').map_or((None, key), |(sections, last)| (Some(sections), last));
        for section in sections.into_iter().flat_map(|sections| sections.split('.')) {
            let inner = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
            match inner {
                Value::Table(inner) => table = inner,
                Value::String(_)
                | Value::Integer(_)
                | Value::Float(_)
                | Value::Boolean(_)
                | Value::Datetime(_)
                | Value::Array(_) => {
                    return Err(
                        self.error(section, "is not a section; write its settings under it".to_owned())
                    );
                }
            }
        }
        table.insert(last.to_owned(), value);
        self.overridden.push((key, name));
        Ok(())
    }

    /// Deserializes the values into `T`.
    ///
    /// # Errors
    /// The first setting that is unknown, missing or has the wrong type.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        let value = Value::Table(self.table.clone());
        serde_path_to_error::deserialize(value).map_err(|error| {
            let key = error.path().to_string();
            let key = if key == "." { String::new() } else { key };
            let message = error.into_inner().message().to_owned();
            self.error(&key, message)
        })
    }

    /// Builds an error about the setting `key` (`section.key`).
    pub(crate) fn error(&self, key: &str, problem: String) -> ConfigError {
        let variable = self.overridden.iter().find(|(overridden, _)| *overridden == key);
        let place = match variable {
            Some((_, name)) => SettingPlace::Variable(name),
            None => SettingPlace::Line { path: self.path.clone(), line: self.line(key), key: key.to_owned() },
        };
        ConfigError::Value { place, problem }
    }

    /// Returns the line of a setting, or of the innermost section around it that exists in the file.
    fn line(&self, key: &str) -> Option<usize> {
        let document = DeTable::parse(&self.text).ok()?;
        let mut table = document.get_ref();
        let mut found = None;
        for part in key.split('.') {
            let Some((name, value)) = table.iter().find(|(name, _)| name.get_ref() == part) else { break };
            found = Some(line_of(&self.text, &name.span()));
            match value.get_ref() {
                DeValue::Table(inner) => table = inner,
                DeValue::String(_)
                | DeValue::Integer(_)
                | DeValue::Float(_)
                | DeValue::Boolean(_)
                | DeValue::Datetime(_)
                | DeValue::Array(_) => break,
            }
        }
        found
    }
}

fn line_of(text: &str, span: &Range<usize>) -> usize {
    1 + text.bytes().take(span.start).filter(|byte| *byte == b'\n').count()
}
