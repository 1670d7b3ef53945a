"""Short chat templates in the form of known model families, beside that of `tests.support.tiny_model`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.support.tiny_model import SPECIAL, TEMPLATE, write_tiny_model

_TOKEN = re.compile(r"<\|?[a-z_/]+[a-z_▁/]*\|?>|<｜[^｜]+｜>|<\|\"\|>")


@dataclass(frozen=True, slots=True)
class TinyFamily:
    """A family's template, the tokenizer's own end token, and tokens that the template does not name."""

    template: str
    end: str
    tokens: tuple[str, ...] = ()

    def write(self, folder: Path) -> Path:
        """Write a tiny model whose vocabulary has the family's tokens, with nothing else that names the family."""
        special = dict.fromkeys((SPECIAL[0], self.end, *_TOKEN.findall(self.template), *self.tokens))
        return write_tiny_model(folder, template=self.template, special=tuple(special), end=self.end)


QWEN3_CODER = r"""
{%- if tools %}<|im_start|>system
<tools>{{ tools | tojson }}</tools><|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ m.role }}
{% if loop.last and m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content.split('</think>')[-1].strip() }}
{%- for c in m.tool_calls or [] %}
{%- if m.content or not loop.first %}{{ '\n' }}{% endif %}<tool_call>
<function={{ c.function.name }}>
{% for key, value in c.function.arguments.items() %}<parameter={{ key }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}"""
"""As Qwen3.5 writes: the prompt opens the reasoning. Unlike its template, this one drops all earlier reasoning."""

LLAMA3 = r"""
{%- if tools %}<|start_header_id|>system<|end_header_id|>

{{ tools | tojson }}<|eot_id|>{% endif %}
{%- for m in messages %}
{%- if m.tool_calls %}
{%- if m.tool_calls | length > 1 %}{{ raise_exception('one call a turn') }}{% endif %}
{%- set call = m.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{{- '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' + ('ipython' if m.role == 'tool' else m.role) + '<|end_header_id|>\n\n' }}
{{- (m.content | tojson if m.role == 'tool' else m.content) + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

GEMMA4 = r"""
{%- if tools %}<|turn>system
{{ tools | tojson }}<turn|>
{% endif %}
{%- set ns = namespace(open=false) %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{{- '<|tool_response>response:' + m.name + '{value:<|"|>' + m.content + '<|"|>}<tool_response|>' }}
{%- else %}
{%- if m.role != 'assistant' or not ns.open %}<|turn>{{ 'model' if m.role == 'assistant' else m.role }}
{% endif %}
{%- if m.reasoning_content %}{{ '<|channel>thought\n' + m.reasoning_content + '<channel|>' }}{% endif %}
{{- m.content }}
{%- for c in m.tool_calls or [] %}<|tool_call>call:{{ c.function.name }}{
{%- for key, value in c.function.arguments | dictsort %}{{ ',' if not loop.first else '' }}{{ key }}:
{{- '<|"|>' + value + '<|"|>' if value is string else value | tojson }}{% endfor %}}<tool_call|>{% endfor %}
{%- set ns.open = m.tool_calls %}
{%- if not m.tool_calls %}{{ '<turn|>\n' }}{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt and not ns.open %}{{ '<|turn>model\n' }}{% endif %}"""

GLM4 = r"""
{%- if tools %}<|system|>
{{ tools | tojson }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{{- '<|observation|>' if messages[loop.index0 - 1].role != 'tool' else '' }}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- elif m.role == 'assistant' %}<|assistant|>
{{- '\n<think>' + (m.reasoning_content or '') + '</think>' }}
{{- '\n' + m.content if m.content else '' }}
{%- for c in m.tool_calls or [] %}{{ '\n<tool_call>' + c.function.name }}
{% for key, value in c.function.arguments.items() %}<arg_key>{{ key }}</arg_key>
<arg_value>{{ value if value is string else value | tojson }}</arg_value>
{% endfor %}</tool_call>{% endfor %}
{%- else %}{{ '<|' + m.role + '|>\n' + m.content }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""

GPT_OSS = r"""
{%- if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{{- '<|start|>functions.' + m.name + ' to=assistant<|channel|>commentary<|message|>' }}
{{- (m.content | tojson) + '<|end|>' }}
{%- elif m.tool_calls %}
{%- if m.thinking %}{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}
{%- set call = m.tool_calls[0].function %}
{%- if m.tool_calls | length > 1 %}{{ raise_exception('one call a turn') }}{% endif %}
{{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' }}
{{- (call.arguments | tojson) + '<|call|>' }}
{%- elif m.role == 'assistant' %}
{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + ('<|return|>' if loop.last else '<|end|>') }}
{%- else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""

LFM2 = r"""
{%- if tools %}<|im_start|>system
List of tools: {{ tools | tojson }}<|im_end|>
{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}
{%- for c in m.tool_calls or [] %}{{ '<|tool_call_start|>[' if loop.first else ', ' }}{{ c.function.name }}(
{%- for key, value in c.function.arguments.items() %}{{ ', ' if not loop.first else '' }}{{ key }}=
{{- "'" + value + "'" if value is string else value | string }}{% endfor %})
{{- ']<|tool_call_end|>' if loop.last else '' }}{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

MUSE_GLIMMER = r"""
{%- if tools %}<|start|>system<|message|>{{ tools | tojson }}<|eot|>{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{{- '<|start|>tool ' + m.name + '<|message|><tool_output name="' + m.name + '">\n' + m.content + '\n</tool_output>' }}
{{- '<|eom|>' if not loop.last and messages[loop.index0 + 1].role == 'tool' else '<|eot|>' }}
{%- elif m.role == 'assistant' %}
{%- if m.reasoning_content %}<|start|>assistant to=self<|message|>{{ m.reasoning_content }}<|eom|>{% endif %}
{%- for c in m.tool_calls or [] %}
{{- '<|start|>assistant to=' + c.function.name + '<|message|><atem:function_calls>\n' }}
{{- '<atem:invoke name="' + c.function.name + '">\n' }}
{%- for key, value in c.function.arguments.items() %}
{{- '<atem:parameter name="' + key + '">' + (value | string) + '</atem:parameter>\n' }}
{%- endfor %}
{{- '</atem:invoke>\n</atem:function_calls>' + ('<|eot|>' if loop.last else '<|eom|>') }}
{%- else %}<|start|>assistant to=user<|message|>{{ m.content }}<|eot|>
{%- endfor %}
{%- else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|eot|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""

KIMI_K2 = r"""
{%- if tools %}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{{- '<|im_system|>' + m.name + '<|im_middle|>## Return of ' + m.tool_call_id + '\n' + m.content + '<|im_end|>' }}
{%- else %}
{{- '<|im_' + m.role + '|>' + m.role + '<|im_middle|>' + m.content }}
{%- for c in m.tool_calls or [] %}{{ '<|tool_calls_section_begin|>' if loop.first else '' }}
{{- '<|tool_call_begin|>' + c.id + '<|tool_call_argument_begin|>' + (c.function.arguments | tojson) }}
{{- '<|tool_call_end|>' + ('<|tool_calls_section_end|>' if loop.last else '') }}
{%- endfor %}<|im_end|>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"""

_HUNYUAN = r"""
{%- if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}
{%- for c in m.tool_calls or [] %}{{ '<tool_calls>[' if loop.first else ', ' }}
{{- '{"name": "' + c.function.name + '", "arguments": ' + (c.function.arguments | tojson) + '}' }}
{{- ']</tool_calls>' if loop.last else '' }}{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
OTHER = TinyFamily(_HUNYUAN, "<|im_end|>")
"""Its calls are read by the parser `hunyuan_a13b` of vLLM, of which no family is known."""

_DEEPSEEK = r"""
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{{- '<｜tool▁outputs▁begin｜>' if messages[loop.index0 - 1].role != 'tool' else '' }}
{{- '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}
{{- '<｜tool▁outputs▁end｜>' if loop.last or messages[loop.index0 + 1].role != 'tool' else '' }}
{%- elif m.role == 'assistant' %}<｜Assistant｜>{{ m.content }}
{%- for c in m.tool_calls or [] %}{{ '<｜tool▁calls▁begin｜>' if loop.first else SEPARATOR }}
{{- CALL }}
{{- '<｜tool▁call▁end｜>' + ('<｜tool▁calls▁end｜>' if loop.last else '') }}
{%- endfor %}<｜end▁of▁sentence｜>
{%- else %}<｜User｜>{{ m.content }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<｜Assistant｜>{% endif %}"""
_MISTRAL = r"""
{{- '<s>' }}
{%- if tools %}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}
{%- elif m.role == 'assistant' %}{{ m.content }}
{%- for c in m.tool_calls or [] %}
{%- if c.id | length != 9 %}{{ raise_exception('ids have nine letters and digits') }}{% endif %}
{{- CALL }}
{%- endfor %}{{ '</s>' }}
{%- else %}{{ '[INST]' + m.content + '[/INST]' }}
{%- endif %}
{%- endfor %}"""
_MARKED = "'[TOOL_CALLS]' + c.function.name + '[ARGS]' + (c.function.arguments | tojson)"
_LISTED = r"""('[TOOL_CALLS][' if loop.first else ', ') + '{"name": "' + c.function.name + '", "arguments": '
   + (c.function.arguments | tojson) + ', "id": "' + c.id + '"}' + (']' if loop.last else '')"""
_MISTRAL_TOKENS = ("[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]")
MISTRAL_LIST = TinyFamily(_MISTRAL.replace("CALL }}", f"{_LISTED} }}}}"), "</s>", _MISTRAL_TOKENS)
"""As Mistral wrote until 2024."""
_V3 = r"""'<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + c.function.name
   + '\n```json\n' + (c.function.arguments | tojson) + '\n```'"""
_V31 = "'<｜tool▁call▁begin｜>' + c.function.name + '<｜tool▁sep｜>' + (c.function.arguments | tojson)"

TINY = {
    "hermes": TinyFamily(TEMPLATE, "<|im_end|>"),
    "qwen3_coder": TinyFamily(QWEN3_CODER, "<|im_end|>"),
    "llama3": TinyFamily(LLAMA3, "<|eot_id|>", ("<|python_tag|>",)),
    "gemma4": TinyFamily(GEMMA4, "<turn|>"),
    "glm4": TinyFamily(GLM4, "<|endoftext|>", ("<|user|>",)),
    "gpt_oss": TinyFamily(GPT_OSS, "<|return|>"),
    "lfm2": TinyFamily(LFM2, "<|im_end|>"),
    "muse_glimmer": TinyFamily(MUSE_GLIMMER, "<|eot|>"),
    "kimi_k2": TinyFamily(KIMI_K2, "<|im_end|>"),
    "mistral": TinyFamily(_MISTRAL.replace("CALL }}", f"{_MARKED} }}}}"), "</s>", (*_MISTRAL_TOKENS, "[ARGS]")),
    "deepseek_v3": TinyFamily(_DEEPSEEK.replace("CALL", _V3).replace("SEPARATOR", r"'\n'"), "<｜end▁of▁sentence｜>"),
    "deepseek_v31": TinyFamily(_DEEPSEEK.replace("CALL", _V31).replace("SEPARATOR", "''"), "<｜end▁of▁sentence｜>"),
}
