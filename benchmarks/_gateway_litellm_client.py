"""LiteLLM as a client: one whole answer and one streamed, run by a Python that has it installed.

    python benchmarks/_gateway_litellm_client.py BASE_URL KEY MODEL

Prints one line of JSON: the tokens in and out that it saw of each call.
"""

import json
import sys

import litellm

base_url, key, model = sys.argv[1:]
asked = {
    "model": f"openai/{model}",
    "api_base": base_url,
    "api_key": key,
    "messages": [{"role": "user", "content": "Where is my card?"}],
}
whole = litellm.completion(**asked)
*_, last = litellm.completion(**asked, stream=True, stream_options={"include_usage": True})
print(json.dumps([[seen.usage.prompt_tokens, seen.usage.completion_tokens] for seen in (whole, last)]))
