//! Samples of a metrics text in the OpenMetrics or Prometheus format.
//!
//! Owns: names, labels and values.
//! Does not own: types, units, timestamps and exemplars, which are skipped.

/// One sample.
#[derive(Debug, PartialEq)]
pub(super) struct Sample<'a> {
    pub(super) name: &'a str,
    labels: Vec<(&'a str, String)>,
    pub(super) value: f64,
}

impl Sample<'_> {
    /// Returns the value of a label.
    pub(super) fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| *label == name).map(|(_, value)| value.as_str())
    }
}

/// Parses the samples in `text`.
///
/// # Errors
/// A line is not a sample, or the end marker is missing.
pub(super) fn samples(text: &str) -> Result<Vec<Sample<'_>>, String> {
    if text.lines().next_back() != Some("# EOF") {
        return Err("its answer is not a complete metrics text".to_owned());
    }
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            sample(line).ok_or_else(|| format!("its answer has a line that is not a sample: {line:?}"))
        })
        .collect()
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let (name, rest) = line.split_at(line.find(['{', ' '])?);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some(Sample { name, labels, value })
}

type SampleLabels<'a> = Vec<(&'a str, String)>;

/// Parses the labels at the start of `text`; also returns the text after the closing brace.
fn labels(mut text: &str) -> Option<(SampleLabels<'_>, &str)> {
    let mut labels = Vec::new();
    loop {
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, rest) = text.split_once("=\"")?;
        let (value, rest) = quoted(rest)?;
        labels.push((name, value));
        text = rest.strip_prefix(',').unwrap_or(rest);
    }
}

/// Parses the value up to the next quote; also returns the text after it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        value.push(match char {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => '\n',
                escaped => escaped,
            },
            plain => plain,
        });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_names_labels_and_values() {
        let text = "# HELP a_b Text of a line.\n# TYPE a_b counter\n\
                    a_b_total{volume=\"id-1\",name=\"a \\\"b\\\", {c}\\\\\"} 12.5\n\
                    log_lines_total 3.0 1764000000\n# EOF\n";
        let found = samples(text).unwrap();
        let named: Vec<_> = found.iter().map(|sample| (sample.name, sample.value)).collect();
        assert_eq!(named, [("a_b_total", 12.5), ("log_lines_total", 3.0)]);
        assert_eq!(found[0].label("volume"), Some("id-1"));
        assert_eq!(found[0].label("name"), Some("a \"b\", {c}\\"));
        assert_eq!(found[0].label("other"), None);
    }

    #[test]
    fn other_texts_are_refused() {
        assert!(samples("a 1.0\n").unwrap_err().contains("not a complete metrics text"), "it was cut");
        assert!(samples("").is_err());
        for line in ["a", "a{b=\"c} 1", "a{b=\"c\"} x", "a{b} 1"] {
            let refused = samples(&format!("{line}\n# EOF\n")).unwrap_err();
            assert!(refused.contains("not a sample"), "{refused}");
        }
    }
}
