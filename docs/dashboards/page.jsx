// Draws one dashboard with Grafana's own components: window.BOARD has its JSON, the chosen values of its variables, the
// shown time and, by panel and query, what Prometheus answered. Heatmaps are drawn here: Grafana's is no part of the
// package. `require`, as esbuild finds no default exports in some of what @grafana/ui imports.
const React = require('react');
const { createRoot } = require('react-dom/client');
const { ThemeContext, GlobalStyles, PanelChrome, TimeSeries, BigValue } = require('@grafana/ui');
const { applyFieldOverrides, createDataFrame, createTheme, dateTime, FieldType, getDisplayProcessor,
  renderMarkdown } = require('@grafana/data');

const { dashboard, values, from, to, answers } = window.BOARD;
const COLUMN = 64, ROW = 38, GAP = 8, HEAD = 88;
const theme = createTheme({ colors: { mode: 'dark' } });
const timeRange = { from: dateTime(from), to: dateTime(to), raw: { from: 'now-3h', to: 'now' } };
const drawn = {};

function legend(template, metric) {
  return template.replace(/{{\s*(\w+)\s*}}/g, (_, label) => metric[label] ?? '');
}

/** Grafana's field configuration of a query: the panel's defaults and the overrides for this query. */
function configOf(panel, refId) {
  const { defaults, overrides } = panel.fieldConfig;
  const config = structuredClone(defaults);
  const own = overrides.filter((override) => override.matcher.id === 'byFrameRefID' && override.matcher.options === refId);
  for (const { id, value } of own.flatMap((override) => override.properties)) {
    const path = id.split('.');
    const last = path.pop();
    path.reduce((part, key) => (part[key] ??= {}), config)[last] = value;
  }
  return config;
}

function framesOf(panel) {
  const frames = answers[panel.id].flatMap(({ refId, template, series }) =>
    series.map(({ metric, values }) => {
      const name = legend(template, metric);
      const numbers = values.map(([, value]) => (value === 'NaN' ? null : Number(value))); // a gap
      return createDataFrame({
        refId,
        fields: [
          { name: 'time', type: FieldType.time, values: values.map(([time]) => time * 1000), config: {} },
          { name, type: FieldType.number, values: numbers, config: { ...configOf(panel, refId), displayName: name } },
        ],
      });
    }));
  const fieldConfig = { defaults: {}, overrides: [] };
  return applyFieldOverrides({ data: frames, fieldConfig, replaceVariables: (text) => text, theme, timeZone: 'utc' });
}

function Figures({ panel, frames, width, height }) {
  const shown = frames.map((frame) => {
    const field = frame.fields[1];
    const last = [...field.values].reverse().find((value) => value !== null);
    const value = getDisplayProcessor({ field, theme })(last);
    return { ...value, title: field.config.displayName };
  });
  if (!shown.length) shown.push({ text: panel.fieldConfig.defaults.noValue ?? 'No data', numeric: NaN });
  const { textMode, colorMode, graphMode, justifyMode, text, wideLayout } = panel.options;
  return (
    <div style={{ display: 'flex' }}>
      {shown.map((value, at) => (
        <BigValue key={at} value={value} theme={theme} width={width / shown.length} height={height} count={shown.length}
          colorMode={colorMode} graphMode={graphMode} justifyMode={justifyMode} textMode={textMode} text={text}
          disableWideLayout={!wideLayout} />
      ))}
    </div>
  );
}

function Heatmap({ frames, width, height }) {
  const bound = (frame) => (frame.fields[1].config.displayName === '+Inf' ? Infinity : Number(frame.fields[1].config.displayName));
  const buckets = [...frames].sort((a, b) => bound(a) - bound(b));
  const cells = buckets.flatMap((frame, y) => frame.fields[0].values.map((time, at) => {
    const below = y && buckets[y - 1].fields[0].values.indexOf(time);
    const count = frame.fields[1].values[at] - (y ? buckets[y - 1].fields[1].values[below] : 0);
    return { time, y, count };
  }));
  const most = Math.max(...cells.map((cell) => cell.count), 1e-9);
  const times = [...new Set(cells.map((cell) => cell.time))].sort((a, b) => a - b);
  const w = times.length > 1 ? ((times[1] - times[0]) / (to - from)) * (width - 60) : 4, h = (height - 20) / buckets.length;
  return (
    <svg width={width} height={height}>
      {cells.map(({ time, y, count }, at) => count > 0 && (
        <rect key={at} x={60 + ((time - from) / (to - from)) * (width - 60)} y={height - 20 - (y + 1) * h} width={w + 0.5} height={h}
          fill={`rgba(87, 148, 242, ${0.15 + (0.85 * count) / most})`} />
      ))}
      {buckets.map((frame, y) => (
        <text key={y} x={54} y={height - 20 - y * h} fontSize={10} fill="#aaa" textAnchor="end">{frame.fields[1].config.displayName}</text>
      ))}
    </svg>
  );
}

function Content({ panel, width, height }) {
  if (panel.type === 'text') {
    const html = renderMarkdown(panel.options.content.replace(/\$(\w+)/g, (whole, name) => values[name] ?? whole));
    return <div style={{ padding: 8, overflow: 'hidden', height }} dangerouslySetInnerHTML={{ __html: html }} />;
  }
  const frames = framesOf(panel);
  drawn[panel.id] = { title: panel.title, series: frames.length };
  if (panel.type === 'stat') return <Figures {...{ panel, frames, width, height }} />;
  if (!frames.length) return <div style={{ textAlign: 'center', paddingTop: height / 2 - 20 }}>No data</div>;
  if (panel.type === 'heatmap') return <Heatmap {...{ frames, width, height }} />;
  return (
    <TimeSeries frames={frames} structureRev={1} width={width} height={height} timeRange={timeRange} timeZone="utc"
      legend={{ ...panel.options.legend, showLegend: true }} replaceVariables={(text) => text} options={{}} />
  );
}

function Panel({ panel }) {
  const { x, y, w, h } = panel.gridPos;
  const place = { position: 'absolute', left: x * COLUMN + GAP, top: HEAD + y * ROW };
  if (panel.type === 'row') return <div style={{ ...place, paddingTop: 10, fontWeight: 500 }}>{panel.title}</div>;
  return (
    <div style={place}>
      <PanelChrome title={panel.title} description={panel.description} width={w * COLUMN - GAP} height={h * ROW - GAP}>
        {(width, height) => <Content {...{ panel, width, height }} />}
      </PanelChrome>
    </div>
  );
}

function Variables() {
  return dashboard.templating.list.filter((variable) => variable.name in values).map((variable) => (
    <span key={variable.name} style={{ marginRight: 16 }}>
      {variable.label} <span style={{ border: '1px solid #444', padding: '3px 8px' }}>{values[variable.name]}</span>
    </span>
  ));
}

const bottom = Math.max(...dashboard.panels.map(({ gridPos: { y, h } }) => y + h));
createRoot(document.getElementById('root')).render(
  <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    <div style={{ position: 'relative', width: 24 * COLUMN + GAP, height: HEAD + bottom * ROW, background: theme.colors.background.canvas }}>
      <h3 style={{ padding: '12px 8px 0', margin: 0 }}>{dashboard.title}</h3>
      <div style={{ padding: 8 }}><Variables /></div>
      {dashboard.panels.map((panel) => <Panel key={panel.id} panel={panel} />)}
    </div>
  </ThemeContext.Provider>,
);
// Panels draw themselves after they were measured; the reader of the page waits for this element.
setTimeout(() => {
  const done = document.createElement('script');
  Object.assign(done, { id: 'drawn', type: 'application/json', textContent: JSON.stringify(Object.values(drawn)) });
  document.body.append(done);
}, 1000);
